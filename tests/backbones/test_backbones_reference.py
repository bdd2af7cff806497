"""Dream and LLaDA against a plain computation from the tensors as published."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.backbones.helpers import BackboneOf, FolderOf, pad, texts
from tests.backbones.reference import DREAM, LLADA, Plain


def plain(name: str, folder_of: FolderOf) -> Plain:
    tensors = load_file(folder_of(name) / "model.safetensors")
    if name == "dream":
        return Plain(tensors, DREAM, layers=2, heads=4, epsilon=1e-6, theta=1e6)
    return Plain(tensors, LLADA, layers=2, heads=4, epsilon=1e-5, theta=5e5)


@pytest.mark.parametrize("name", ["dream", "llada"])
@torch.inference_mode()
def test_hidden_states_and_logits(name: str, folder_of: FolderOf, backbone_of: BackboneOf) -> None:
    rows = texts(19, 8, 13)
    ids_BL, mask_BL, last_B1 = pad(rows)
    positions_BP = last_B1 - torch.tensor([[7, 3, 0]])
    hidden_BPH, logits_BPV = backbone_of(name).forward(ids_BL, mask_BL, positions_BP)
    for row, ids_L in enumerate(rows):
        hidden_LH, logits_LV = plain(name, folder_of).run(ids_L)
        own_P = positions_BP[row] - (ids_BL.shape[1] - len(ids_L))
        torch.testing.assert_close(hidden_BPH[row], hidden_LH[own_P], atol=2e-5, rtol=0)
        torch.testing.assert_close(logits_BPV[row], logits_LV[own_P], atol=2e-5, rtol=0)
