"""The inputs of a pass: checked before it is computed, and padded to few shapes for passes that are captured.

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
"""Lengths are multiples of it: some kernels pad attention masks of other widths in every layer."""


class PassInputs(NamedTuple):
    """What a backbone reads in a pass, integers [B, L]."""

    ids_BL: Tensor
    mask_BL: Tensor
    """1 or True for a token, 0 or False for a pad."""
    position_ids_BL: Tensor | None
    """None: each token's count of tokens before it in its row."""
    slots_BL: Tensor | None
    """Which slot of its text a token is, -1 for one that is no slot; None where nothing depends on it."""

    def placed(self) -> PassInputs:
        """Return the inputs with positions."""
        if self.position_ids_BL is not None:
            return self
        return self._replace(position_ids_BL=default_position_ids(self.mask_BL))

    def padded(self, rows: int, length: int) -> PassInputs:
        """Return placed inputs with further rows, copies of the last one, and further columns of pads: [R, W]."""
        assert self.position_ids_BL is not None, "what stands where depends on no pad"
        row_R = torch.arange(rows, device=self.ids_BL.device).clamp(max=len(self.ids_BL) - 1)
        more = (0, length - self.ids_BL.shape[1])
        return PassInputs(
            pad(self.ids_BL, more)[row_R],
            pad(self.mask_BL, more)[row_R],
            pad(self.position_ids_BL, more)[row_R],
            None if self.slots_BL is None else pad(self.slots_BL, more, value=-1)[row_R],
        )


def pad_right(rows: Sequence[np.ndarray], fill: int) -> tuple[Tensor, Tensor]:
    """Return int64 [B, L] with `fill` after each row's end, and the mask int64 [B, L] of real entries."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    mask_BL = (torch.arange(width)[None, :] < lengths[:, None]).long()
    ids_BL = torch.full((len(rows), width), fill, dtype=torch.int64)
    if width:
        ids_BL[mask_BL.bool()] = torch.from_numpy(np.concatenate(rows)).long()
    return ids_BL, mask_BL


def default_position_ids(mask_BL: Tensor) -> Tensor:
    """Return each token's count of tokens before it in its row: the side of the pads does not matter."""
    return (mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)


def rung(tokens: int) -> int:
    """Return the least length not below `tokens` of a ladder: 16, 32, … 128, 160, … 256, 320, … 512 and so on."""
    step = max(STEP, 1 << (tokens - 1).bit_length() >> 3)
    return -(-tokens // step) * step


def check_inputs(inputs: PassInputs, *, vocab_size: int, max_length: int) -> None:
    """Raise `ValueError` for token ids outside of the vocabulary, a row without a token or one that is too long.

    Values on a GPU are not checked: reading them would stall it.
    """
    assert inputs.ids_BL.shape == inputs.mask_BL.shape, "each token has a place in the mask"
    if inputs.mask_BL.device.type != "cpu":
        return
    low, high = int(inputs.ids_BL.min()), int(inputs.ids_BL.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"input_ids must lie in [0, {vocab_size}), found {low} to {high}: take this backbone's tokenizer."
        )
    if not inputs.mask_BL.any(dim=1).all():
        raise ValueError("attention_mask has a row without a token.")
    check_lengths(inputs.mask_BL.sum(dim=1), max_length)


def check_lengths(lengths_B: Tensor, max_length: int) -> None:
    """Raise `ValueError` if a text, on the CPU, has more tokens than a backbone takes."""
    longest = int(lengths_B.max())
    if longest > max_length:
        raise ValueError(f"a row has {longest} tokens; this backbone takes {max_length}: truncate it.")
