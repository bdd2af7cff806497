"""Logits of stored vectors equal those of the states.

Legend: B texts, P positions, H hidden size, V vocabulary, M = B x P.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.backbones.logits import as_states
from diffretriever.encoders.readout import unit_float16
from tests.backbones.helpers import FolderOf, pad, texts

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
def test_logits_are_the_models_own(uneven: Backbone) -> None:
    output = uneven.forward(BATCH.ids_BL, BATCH.mask_BL, BATCH.last_B1 + torch.tensor([[-2, -1, 0]]))
    hidden_MH, logits_MV = output.hidden.flatten(0, 1), output.logits.flatten(0, 1)
    found_MV = uneven.logits_of(unit_float16(hidden_MH))
    scale = logits_MV.std().item()
    torch.testing.assert_close(found_MV, logits_MV, atol=2e-3 * scale, rtol=2e-3)
    longer_MV = uneven.logits_of(7 * unit_float16(hidden_MH).float())
    torch.testing.assert_close(longer_MV, found_MV, atol=1e-4 * scale, rtol=1e-4)


def test_dimensions_that_a_norm_switches_off() -> None:
    """Their length is the mean of the other dimensions, up to chance."""
    generator = torch.Generator().manual_seed(0)
    weight_H = torch.rand(256, generator=generator) + 0.2
    weight_H[[3, 77, 200]] = torch.tensor([0.0, 1e-30, -1e-5])
    bias_H = torch.randn(256, generator=generator) / 10
    states_MH = functional.layer_norm(torch.randn(40, 256, generator=generator), (256,), weight_H, bias_H)
    found_MH = as_states(functional.normalize(states_MH), weight_H, bias_H)
    assert found_MH.isfinite().all()
    torch.testing.assert_close(found_MH.norm(dim=1), states_MH.norm(dim=1), rtol=0.05, atol=0)
