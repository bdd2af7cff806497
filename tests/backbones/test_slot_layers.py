"""Slot layers: embeddings, token head, pooling, nested slots and files.

Legend: B texts, L padded length, K slots, S slots with a vector, H hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.backbones.slot_layers import (
    SLOTS_FILE,
    SlotLayers,
    attach_slot_layers,
    read_max_slots,
    read_slot_layers,
    split_into_parts,
)
from diffretriever.testing.adapters import write_random_adapter
from tests.backbones.helpers import BackboneOf, FolderOf, pad, texts

BATCH = pad(texts(9, 5, 7), side="right")
SLOTS_BL = torch.tensor(
    [[-1, -1, -1, -1, -1, 0, 1, 2, -1], [-1, -1, 0, 1, -1, -1, -1, -1, -1], [-1, -1, -1, 0, 1, 2, -1, -1, -1]]
)
COLUMNS_BK = torch.tensor([[5, 6, 7], [2, 3, 3], [3, 4, 5]])
BIDIRECTIONAL = ("dream", "llada", "bert", "modernbert")


def random_layers(hidden_size: int, slots: int = 3) -> SlotLayers:
    generator = torch.Generator().manual_seed(1)
    embeddings_SH = torch.randn(slots, hidden_size, generator=generator)
    return SlotLayers(embeddings_SH, torch.randn(hidden_size, hidden_size, generator=generator) / 10)


@pytest.fixture(params=["sdpa", "packed"])
def with_layers(request: pytest.FixtureRequest, family: str, folder_of: FolderOf) -> Backbone:
    backbone = load_backbone(folder_of(family), device="cpu", attention=request.param)
    attach_slot_layers(backbone.model, random_layers(backbone.hidden_size))
    return backbone


def test_slot_embeddings_and_token_head_apply(with_layers: Backbone, backbone_of: BackboneOf, family: str) -> None:
    layers = with_layers.slot_layers
    assert layers is not None
    assert layers.embeddings is not None
    assert layers.token_head is not None
    plain = backbone_of(family)
    with torch.no_grad():
        embedded_BLH = plain.model.get_input_embeddings()(BATCH.ids_BL)
        embedded_BLH[SLOTS_BL >= 0] += layers.embeddings[SLOTS_BL[SLOTS_BL >= 0]]
        states_BLH = plain.model.base_model(
            inputs_embeds=embedded_BLH, attention_mask=BATCH.mask_BL, use_cache=False
        ).last_hidden_state
        found = with_layers.forward(BATCH.ids_BL, BATCH.mask_BL, COLUMNS_BK, slots=SLOTS_BL)
        expected_BKH = states_BLH[torch.arange(3)[:, None], COLUMNS_BK]
        read_BKH = expected_BKH + expected_BKH @ layers.token_head.T
        expected_BKV = plain.output_projection(plain.head_input(read_BKH))
        some = with_layers.forward(BATCH.ids_BL, BATCH.mask_BL, COLUMNS_BK, torch.tensor([3, 7]), slots=SLOTS_BL)
    torch.testing.assert_close(found.hidden, expected_BKH, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.logits, expected_BKV, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(some.logits, expected_BKV[..., [3, 7]], atol=1e-4, rtol=1e-4)


def test_a_slot_pools_only_its_part() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden_BKH, states_BLH = torch.randn(1, 3, 4, generator=generator), torch.randn(1, 8, 4, generator=generator)
    residual_HH, attention_HH = torch.randn(2, 4, 4, generator=generator)
    is_text_BL = torch.tensor([[True, True, False, True, True, True, True, True]])
    view_BKL = split_into_parts(is_text_BL, torch.tensor([3]), 3)
    parts = [[0, 1], [3, 4], [5, 6, 7]]
    assert [view_L.nonzero().squeeze(1).tolist() for view_L in view_BKL[0]] == parts
    layers = SlotLayers(residual_HH=residual_HH, attention_HH=attention_HH)
    found_KH = layers.vectors(hidden_BKH, states_BLH, is_text_BL, view_BKL)[0]
    untrained_KH = SlotLayers().vectors(hidden_BKH, states_BLH, is_text_BL, view_BKL)[0]
    mean_H = states_BLH[0, is_text_BL[0]].mean(0)
    for slot, part in enumerate(parts):
        own_LH = states_BLH[0, part]
        weights_L = (own_LH @ attention_HH.T @ hidden_BKH[0, slot] / 2).softmax(0)
        torch.testing.assert_close(found_KH[slot], mean_H + residual_HH @ (weights_L @ own_LH), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(untrained_KH[slot], mean_H + own_LH.mean(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "slots", "parts"),
    [
        (7, 3, [[0, 1], [2, 3], [4, 5, 6]]),
        (2, 3, [[0], [0], [1]]),
        # Slots beyond a text's own have its last part.
        (4, 2, [[0, 1], [2, 3], [2, 3]]),
    ],
)
def test_parts_share_the_text_evenly(tokens: int, slots: int, parts: list[list[int]]) -> None:
    view_KL = split_into_parts(torch.ones(1, tokens, dtype=torch.bool), torch.tensor([slots]), 3)[0]
    assert [view_L.nonzero().squeeze(1).tolist() for view_L in view_KL] == parts


def test_too_many_slots_are_refused(with_layers: Backbone) -> None:
    with pytest.raises(ValueError, match="a text with 4 slots, but the adapter was trained with 3 vectors"):
        with_layers.forward(BATCH.ids_BL, BATCH.mask_BL, COLUMNS_BK, slots=SLOTS_BL + (SLOTS_BL == 2))


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
@pytest.mark.parametrize("family", BIDIRECTIONAL)
@torch.inference_mode()
def test_nested_states_do_not_depend_on_what_follows(family: str, attention: str, folder_of: FolderOf) -> None:
    backbone = load_backbone(folder_of(family), device="cpu", attention=attention)
    ids_1L = torch.stack(texts(8))

    def states(length: int, *, nested: bool) -> Tensor:
        slots_1L = torch.tensor([[-1, -1, -1, -1, 0, 1, 2, 3][:length]])
        read = (ids_1L[:, :length], torch.ones(1, length, dtype=torch.long), torch.arange(length)[None])
        return backbone.forward(*read, slots=slots_1L, nested=nested).hidden[0]

    whole = states(8, nested=True)
    for length in (5, 6, 7):
        torch.testing.assert_close(states(length, nested=True), whole[:length], atol=1e-5, rtol=1e-5)
    # Without slots the text is read as ever.
    torch.testing.assert_close(states(4, nested=False), whole[:4], atol=1e-5, rtol=1e-5)
    assert (states(8, nested=False) - whole).abs().max() > 1e-3


def test_slot_layers_are_read_from_a_file(tmp_path: Path, folder_of: FolderOf) -> None:
    adapter = write_random_adapter(folder_of("dream"), tmp_path)
    bare = load_backbone(folder_of("dream"), device="cpu", adapter=adapter)
    written = random_layers(bare.hidden_size)
    save_file(written.tensors(), adapter / SLOTS_FILE)
    assert read_max_slots(adapter) == 3
    layers = (found := load_backbone(folder_of("dream"), device="cpu", adapter=adapter)).slot_layers
    assert layers is not None
    for name, tensor in layers.tensors().items():
        assert torch.equal(tensor, written.tensors()[name])
    assert not any(parameter.requires_grad for parameter in layers.parameters())
    assert found.weights_digest != bare.weights_digest


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"embedings": torch.zeros(2, 4)}, "unknown tensor 'embedings': only embeddings, token_head,"),
        ({"embeddings": torch.zeros(2, 5)}, r"has shape \[2, 5\], the backbone has 4 dimensions and 9 tokens"),
        ({"word_weights": torch.zeros(8)}, r"'word_weights' has shape \[8\], the backbone has 4 dimensions and 9"),
        ({"token_head": torch.zeros(2, 4)}, r"'token_head' has shape \[2, 4\]"),
        ({"embeddings": torch.zeros(())}, r"'embeddings' has shape \[\]"),
        ({"attention": torch.zeros(4, 4)}, "'attention' needs 'residual', which is missing"),
        ({"embeddings": torch.full((2, 4), torch.nan)}, "'embeddings' has values that are not finite"),
    ],
)
def test_slot_layers_that_do_not_fit_are_refused(tensors: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / SLOTS_FILE)
    with pytest.raises(ValueError, match=message):
        read_slot_layers(tmp_path, 4, 9)
