"""Stored vectors, which are halves, as the singles that scores are computed in; nothing is rounded.

Legend: N vectors of all passages, P passages, H hidden size, C chosen passages.
"""

from __future__ import annotations

import numpy as np

from diffretriever.kernels import halves


def widened(stored_NH: np.ndarray) -> np.ndarray:
    """Return float32 [N, H] of float16 [N, H]."""
    out_NH = np.empty(stored_NH.shape, np.float32)
    halves.widen(stored_NH.view(np.uint16), out_NH.view(np.uint32))
    return out_NH


def widened_chosen(stored_NH: np.ndarray, offsets: np.ndarray, chosen_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of chosen passages, float32 [their number, H], and int64 offsets [C + 1] into them.

    Args:
        stored_NH: float16 [N, H].
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1].
        chosen_C: int64 [C].
    """
    out_offsets = np.concatenate([[0], np.cumsum(offsets[chosen_C + 1] - offsets[chosen_C])])
    out_NH = np.empty((out_offsets[-1], stored_NH.shape[1]), np.float32)
    halves.widen_chosen(stored_NH.view(np.uint16), offsets, chosen_C, out_offsets, out_NH.view(np.uint32))
    return out_NH, out_offsets
