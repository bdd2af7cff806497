"""Recorded passes give the same states with few shapes.

On a CPU, the pass runs without a graph; shapes, padding and copies are those of a GPU.
"""

from __future__ import annotations

import pytest
import torch

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.graphs import MAX_LENGTH, MAX_ROWS
from diffretriever.backbones.inputs import PassInputs
from diffretriever.backbones.loader import load_backbone
from diffretriever.backbones.slot_layers import SlotLayers, attach_slot_layers
from tests.backbones.helpers import BackboneOf, FolderOf, hidden, pad, texts

TOLERANCE = 2e-5


@pytest.fixture
def recorded(family: str, folder_of: FolderOf) -> Backbone:
    loaded = load_backbone(folder_of(family), device="cpu")
    loaded.record_passes()
    return loaded


@pytest.mark.parametrize("side", ["left", "right"])
def test_recorded_states_are_the_same(recorded: Backbone, family: str, backbone_of: BackboneOf, side: str) -> None:
    plain = backbone_of(family)
    for lengths in ((9,), (16,), (5, 23, 11), (40, 8)):
        batch = pad(texts(*lengths, seed=len(lengths)), side=side)
        torch.testing.assert_close(hidden(recorded, batch), hidden(plain, batch), atol=TOLERANCE, rtol=0)
    assert recorded._graphs is not None
    assert [(key.rows, key.length) for key in recorded._graphs.keys] == [(1, 16), (4, 32), (2, 48)]


@torch.inference_mode()
def test_recorded_slots_and_positions_are_the_same(recorded: Backbone, family: str, backbone_of: BackboneOf) -> None:
    plain = backbone_of(family)
    ids_BL, mask_BL, last_B1 = pad(texts(9, 6), side="right")
    slots_BL = torch.full_like(ids_BL, -1)
    slots_BL[0, 5:8], slots_BL[1, 3:5] = torch.arange(3), torch.arange(2)
    positions_BL = torch.where(slots_BL >= 0, 400 - 16 * slots_BL, torch.arange(9))
    for nested in (False, True) if not plain.is_causal else (False,):
        actual, expected = (
            each.forward(
                ids_BL, mask_BL, last_B1 - torch.arange(4), position_ids=positions_BL, slots=slots_BL, nested=nested
            )
            for each in (recorded, plain)
        )
        torch.testing.assert_close(actual.hidden, expected.hidden, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(actual.logits, expected.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("lengths", [(MAX_LENGTH + 1,), (4,) * (MAX_ROWS + 1), (200,) * 6])
def test_larger_passes_are_not_recorded(lengths: tuple[int, ...], folder_of: FolderOf, backbone_of: BackboneOf) -> None:
    backbone = load_backbone(folder_of("dream"), device="cpu")
    backbone.record_passes()
    batch = pad(texts(*lengths), side="right")
    assert torch.equal(hidden(backbone, batch), hidden(backbone_of("dream"), batch))
    assert backbone._graphs is not None
    assert not backbone._graphs.keys


@pytest.mark.parametrize("dtype", ["float32", "float8"])
@torch.inference_mode()
def test_a_captured_pass_reads_no_values(family: str, dtype: str, folder_of: FolderOf) -> None:
    """A CUDA graph cannot read values on the host; tensors on `meta` have none."""
    backbone = load_backbone(folder_of(family), device="cpu", dtype=dtype)
    attach_slot_layers(backbone.model, SlotLayers(torch.zeros(2, backbone.hidden_size), None))
    backbone.model.to("meta")
    given = torch.zeros(2, 16, dtype=torch.long, device="meta")
    for slots_BL in (None, given):
        inputs = PassInputs(given, given, given, slots_BL)
        for nested in (False, True) if slots_BL is not None and not backbone.is_causal else (False,):
            assert backbone._capturable_states(inputs, nested).shape == (2, 16, backbone.hidden_size)
