"""The inputs of a pass: checks, padding, and padding to a few shapes for CUDA graphs.

Legend: B batch, L padded length; R rows and W length after padding to a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

STEP = 16
"""Lengths are multiples of this, because some kernels pad other attention masks in every layer."""


class PassInputs(NamedTuple):
    """The inputs of a pass, integers [B, L]."""

    ids_BL: Tensor
    mask_BL: Tensor
    """1 or True for tokens, 0 or False for padding."""
    position_ids_BL: Tensor | None
    """None: the default positions."""
    slots_BL: Tensor | None
    """Index of a slot in its text, -1 for other tokens; None if nothing depends on it."""

    def with_positions(self) -> PassInputs:
        """Return the inputs with explicit positions."""
        if self.position_ids_BL is not None:
            return self
        return self._replace(position_ids_BL=default_position_ids(self.mask_BL))

    def padded(self, rows: int, length: int) -> PassInputs:
        """Pad to [R, W] with copies of the last row and columns of padding; positions must be explicit."""
        assert self.position_ids_BL is not None, "call `with_positions` first"
        row_R = torch.arange(rows, device=self.ids_BL.device).clamp(max=len(self.ids_BL) - 1)
        more = (0, length - self.ids_BL.shape[1])
        return PassInputs(
            pad(self.ids_BL, more)[row_R],
            pad(self.mask_BL, more)[row_R],
            pad(self.position_ids_BL, more)[row_R],
            None if self.slots_BL is None else pad(self.slots_BL, more, value=-1)[row_R],
        )


def pad_right(rows: Sequence[np.ndarray], fill: int) -> tuple[Tensor, Tensor]:
    """Return the rows padded on the right with `fill`, int64 [B, L], and their mask, int64 [B, L]."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    mask_BL = (torch.arange(width)[None, :] < lengths[:, None]).long()
    ids_BL = torch.full((len(rows), width), fill, dtype=torch.int64)
    if width:
        ids_BL[mask_BL.bool()] = torch.from_numpy(np.concatenate(rows)).long()
    return ids_BL, mask_BL


def default_position_ids(mask_BL: Tensor) -> Tensor:
    """Return for each token the number of tokens before it in its row, ignoring padding."""
    return (mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)


def round_up_length(tokens: int) -> int:
    """Round `tokens` up to a fixed set of lengths: 16, 32, … 128, 160, … 256, 320, … 512 and so on."""
    step = max(STEP, 1 << (tokens - 1).bit_length() >> 3)
    return -(-tokens // step) * step


def check_inputs(inputs: PassInputs, *, vocab_size: int, max_length: int) -> None:
    """Raise ValueError for invalid token ids, and for rows that are empty or too long.

    Values on a GPU are not checked, because reading them would stall it.
    """
    assert inputs.ids_BL.shape == inputs.mask_BL.shape, "ids and mask need equal shapes"
    if inputs.mask_BL.device.type != "cpu":
        return
    low, high = int(inputs.ids_BL.min()), int(inputs.ids_BL.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"input_ids must be in [0, {vocab_size}), found {low} to {high}: use this backbone's tokenizer"
        )
    if not inputs.mask_BL.any(dim=1).all():
        raise ValueError("attention_mask has a row without a token")
    check_lengths(inputs.mask_BL.sum(dim=1), max_length)


def check_lengths(lengths_B: Tensor, max_length: int) -> None:
    """Raise ValueError if a length (on the CPU) exceeds `max_length`."""
    longest = int(lengths_B.max())
    if longest > max_length:
        raise ValueError(f"a row has {longest} tokens; this backbone takes {max_length}: truncate it")
