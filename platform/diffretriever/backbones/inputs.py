"""Checks of what a caller hands to a backbone, the positions it may leave out, and who attends to whom.

Shapes: B batch, L padded length, P positions read in a row, T chosen tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def check_inputs(
    input_ids_BL: Tensor,
    attention_mask_BL: Tensor,
    positions_BP: Tensor,
    token_ids: Tensor | None,
    position_ids_BL: Tensor | None,
    *,
    vocab_size: int,
    max_length: int,
) -> None:
    """Raise ValueError for shapes that do not fit and, on the CPU, for values out of range."""
    if input_ids_BL.ndim != 2 or 0 in input_ids_BL.shape:
        raise ValueError(f"input_ids must be [B, L] with at least one token, not {_shape(input_ids_BL)}.")
    batch, length = input_ids_BL.shape
    if attention_mask_BL.shape != (batch, length):
        raise ValueError(f"attention_mask is {_shape(attention_mask_BL)}; input_ids are {[batch, length]}.")
    if positions_BP.ndim != 2 or positions_BP.shape[0] != batch:
        raise ValueError(f"positions must be [B, P] with B = {batch}, not {_shape(positions_BP)}.")
    _check_integers(input_ids_BL, "input_ids", vocab_size)
    _check_integers(attention_mask_BL, "attention_mask", 2)
    _check_integers(positions_BP, "positions", length)
    _check_lengths(attention_mask_BL, max_length)
    if token_ids is not None:
        if token_ids.ndim not in (1, 2) or (token_ids.ndim == 2 and token_ids.shape[0] != batch):
            raise ValueError(f"token_ids must be [T] or [B, T] with B = {batch}, not {_shape(token_ids)}.")
        _check_integers(token_ids, "token_ids", vocab_size)
    if position_ids_BL is not None:
        if position_ids_BL.shape != (batch, length):
            raise ValueError(f"position_ids are {_shape(position_ids_BL)}; input_ids are {[batch, length]}.")
        _check_integers(position_ids_BL, "position_ids", max_length)


def default_position_ids(attention_mask_BL: Tensor) -> Tensor:
    """Return each token's count of tokens before it in its row: the side of the pads does not matter."""
    return (attention_mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)


class Attended(NamedTuple):
    """What a transformers model is given besides its tokens."""

    mask: Tensor | None
    """bool [B, L], or of the scores' dtype [B, 1, L, L]; None where all see all."""
    position_ids_BL: Tensor | None
    """int64; None for the model's own counting."""


def attended(
    mask_BL: Tensor, position_ids_BL: Tensor | None, nested_BL: Tensor | None, device: torch.device, dtype: torch.dtype
) -> Attended:
    """Return mask and positions on `device`.

    Args:
        mask_BL: 1 for a token, 0 for a pad.
        position_ids_BL: the caller's own, if any.
        nested_BL: which slot of its text a token is, as `nested_mask` takes it; None: slots are not nested.
        device: of the model.
        dtype: of the attention scores.
    """
    unpadded, own_positions = bool(mask_BL.all()), position_ids_BL is not None
    if not unpadded and not own_positions:
        position_ids_BL = default_position_ids(mask_BL)
    # No mask is the faster path. With positions of the caller's own one is always given: without it
    # transformers would take a jump in the positions for the border of a packed sequence.
    mask = mask_BL.to(device, torch.bool) if own_positions or not unpadded else None
    if nested_BL is not None:
        mask = nested_mask(nested_BL.to(device), mask_BL.to(device, torch.bool), dtype)
    return Attended(mask, None if position_ids_BL is None else position_ids_BL.to(device, torch.long))


def nested_mask(slots_BL: Tensor, real_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores, [B, 1, L, L], so that slots are nested.

    Args:
        slots_BL: which slot of its text a token is, from 0 on; -1 for one that is no slot.
        real_BL: bool, False at pads.
        dtype: of the attention scores.
    """
    # What is no slot counts as before the first one.
    sees_BLL = (slots_BL[:, :, None] >= slots_BL[:, None, :]) & real_BL[:, None, :]
    return torch.zeros_like(sees_BLL, dtype=dtype).masked_fill_(~sees_BLL, torch.finfo(dtype).min)[:, None]


def _check_integers(tensor: Tensor, name: str, end: int) -> None:
    if tensor.is_floating_point():
        raise ValueError(f"{name} must hold integers, not {tensor.dtype}.")
    if tensor.numel() == 0 or tensor.device.type != "cpu":
        return
    low, high = int(tensor.min()), int(tensor.max())
    if low < 0 or high >= end:
        raise ValueError(f"{name} must lie in [0, {end}), found {low} to {high}.")


def _check_lengths(attention_mask_BL: Tensor, max_length: int) -> None:
    if attention_mask_BL.device.type != "cpu":
        return
    lengths_B = attention_mask_BL.sum(dim=1)
    if int(lengths_B.min()) < 1:
        raise ValueError("attention_mask has a row without a token.")
    if int(lengths_B.max()) > max_length:
        raise ValueError(f"a row has {int(lengths_B.max())} tokens; this backbone takes {max_length}: truncate it.")


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
