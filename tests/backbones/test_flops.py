"""Counted operations equal torch's count and the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from diffretriever.backbones.flops import Matrices
from diffretriever.backbones.loader import load_backbone
from tests.backbones.helpers import FolderOf, pad, texts


def test_a_forward_pass_as_torch_counts_it(family: str, folder_of: FolderOf) -> None:
    # Torch counts no operations of attention's own kernel on a CPU.
    backbone = load_backbone(folder_of(family), device="cpu")
    backbone.model.set_attn_implementation("eager")
    for length in (7, 40):
        batch = pad(texts(length, length))
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            backbone.forward(batch.ids_BL, batch.mask_BL, batch.last_B1, torch.zeros(0, dtype=torch.long))
        # Rotary positions are a product too.
        assert counter.get_total_flops() == pytest.approx(Matrices.of(backbone).forward_flops([length] * 2), rel=2e-3)


def test_flops_equal_the_formula() -> None:
    # Two texts of 3 and 1 tokens; one layer with a matrix of 10 weights and 2 of LoRA, attention 5 wide.
    matrices, lengths = Matrices(frozen=10, trained=2, layers=1, width=5), np.array([3, 1])
    assert matrices.forward_flops(lengths) == 4 * 2 * 12 + 4 * 5 * (9 + 1)
    assert matrices.training_flops(lengths) == 4 * (4 * 10 + 6 * 2) + 12 * 5 * (9 + 1)
