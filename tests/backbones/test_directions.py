"""Logits of stored vectors against those that the model gave at the states, for every family.

Legend: B texts, P positions, H hidden size, V vocabulary, M = B x P.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from diffretriever.backbones import Backbone, load_backbone
from diffretriever.backbones.logits import as_states
from diffretriever.backbones.slot_layers import attach_slot_layers
from diffretriever.encoders.readout import unit_float16
from tests.backbones.helpers import FolderOf, pad, texts
from tests.backbones.test_slot_layers import random_layers

BATCH = pad(texts(9, 5, 7))


@pytest.fixture
def uneven(family: str, folder_of: FolderOf) -> Backbone:
    """A backbone whose final norm weighs dimensions differently, as trained ones do."""
    backbone = load_backbone(folder_of(family), device="cpu")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in backbone.final_norm.named_parameters():
            low, high = (0.3, 2.0) if name == "weight" else (-0.2, 0.2)
            parameter.uniform_(low, high, generator=generator)
    return backbone


@torch.inference_mode()
def hidden_and_logits(backbone: Backbone) -> tuple[torch.Tensor, torch.Tensor]:
    """[M, H] and [M, V] at the last three tokens of each text."""
    positions_BP = BATCH.last_B1 + torch.tensor([[-2, -1, 0]])
    hidden_BPH, logits_BPV = backbone.forward(BATCH.ids_BL, BATCH.mask_BL, positions_BP)
    return hidden_BPH.flatten(0, 1), logits_BPV.flatten(0, 1)


@torch.inference_mode()
def test_logits_are_the_models_own(uneven: Backbone) -> None:
    hidden_MH, logits_MV = hidden_and_logits(uneven)
    found_MV = uneven.logits_of(unit_float16(hidden_MH))
    scale = logits_MV.std().item()
    torch.testing.assert_close(found_MV, logits_MV, atol=2e-3 * scale, rtol=2e-3)
    longer_MV = uneven.logits_of(7 * unit_float16(hidden_MH).float())
    torch.testing.assert_close(longer_MV, found_MV, atol=1e-4 * scale, rtol=1e-4)


@torch.inference_mode()
def test_a_map_before_the_head_counts(uneven: Backbone) -> None:
    attach_slot_layers(uneven.model, random_layers(uneven.hidden_size))
    hidden_MH, logits_MV = hidden_and_logits(uneven)
    found_MV = uneven.logits_of(unit_float16(hidden_MH))
    torch.testing.assert_close(found_MV, logits_MV, atol=2e-3 * logits_MV.std().item(), rtol=2e-3)


@pytest.mark.parametrize("family", ["dream"], indirect=True)
@torch.inference_mode()
def test_dream_ranks_tokens_by_the_direction_alone(uneven: Backbone) -> None:
    """Tokens can only change places where their logits differ by less than the rounding of the vector moves them."""
    hidden_MH, logits_MV = hidden_and_logits(uneven)
    head_VH = uneven.output_projection.get_parameter("weight")
    by_direction_MV = unit_float16(hidden_MH).float() @ head_VH.T
    order_MV = by_direction_MV.argsort(descending=True, stable=True)
    assert torch.equal(uneven.logits_of(unit_float16(hidden_MH)).argmax(1), order_MV[:, 0])
    ranked_MV = logits_MV.gather(1, order_MV)
    falls_MV = ranked_MV[:, :-1] - ranked_MV[:, 1:]
    rounding_M = 2**-10 * hidden_MH.norm(dim=1) * head_VH.norm(dim=1).max()
    assert (falls_MV >= -2 * rounding_M[:, None]).all()
    assert falls_MV.abs().max() > 10 * rounding_M.max(), "they do differ"


def test_lengths_of_layer_norm_and_rms_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    z_MH = torch.randn(40, 256, generator=generator)
    weight_H = torch.rand(256, generator=generator) + 0.2
    bias_H = torch.randn(256, generator=generator) / 10
    centred_MH = functional.layer_norm(z_MH, (256,), weight_H, bias_H)
    found_MH = as_states(functional.normalize(centred_MH), weight_H, bias_H)
    # The norm's epsilon is in the states, and not in what is found.
    torch.testing.assert_close(found_MH, centred_MH, rtol=1e-4, atol=1e-5)
    scaled_MH = functional.rms_norm(z_MH, (256,), weight_H)
    assert torch.equal(as_states(torch.zeros(1, 256), weight_H, bias_H), torch.zeros(1, 256))
    found_MH = as_states(functional.normalize(scaled_MH), weight_H, None)
    torch.testing.assert_close(found_MH, scaled_MH, rtol=1e-4, atol=1e-5)


def test_dimensions_that_a_norm_switches_off() -> None:
    """Lengths are then those of the others' share, within what chance makes of it."""
    generator = torch.Generator().manual_seed(0)
    weight_H = torch.rand(256, generator=generator) + 0.2
    weight_H[[3, 77, 200]] = torch.tensor([0.0, 1e-30, -1e-5])
    bias_H = torch.randn(256, generator=generator) / 10
    states_MH = functional.layer_norm(torch.randn(40, 256, generator=generator), (256,), weight_H, bias_H)
    found_MH = as_states(functional.normalize(states_MH), weight_H, bias_H)
    assert found_MH.isfinite().all()
    torch.testing.assert_close(found_MH.norm(dim=1), states_MH.norm(dim=1), rtol=0.05, atol=0)
