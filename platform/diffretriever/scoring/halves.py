"""Half precision to single precision, many times faster than numpy's own conversion.

Legend: N vectors, P passages, H hidden size, C chosen passages.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# The exponent of a half counts from 15 and that of a single from 127.
_EXPONENTS = np.float32(2.0**112)


_SIGN = np.uint32(0x8000)


_REST = np.uint32(0x7FFF)


_NOT_FINITE = np.uint32(0x7C00 << 13)


_NOT_FINITE_SINGLE = np.uint32(0x7F800000)


@njit(nogil=True, cache=True, inline="always")
def _single(half: np.uint16) -> np.uint32:
    bits = np.uint32(half)
    rest = np.uint32((bits & _REST) << np.uint32(13))
    scaled = np.float32(rest.view(np.float32) * _EXPONENTS).view(np.uint32)
    if rest >= _NOT_FINITE:
        scaled = np.uint32(rest | _NOT_FINITE_SINGLE)
    return np.uint32(scaled | ((bits & _SIGN) << np.uint32(16)))


@njit(nogil=True, cache=True)
def widen(halves_NH: np.ndarray, out_NH: np.ndarray) -> None:
    """Write the bits of the singles that equal the halves; uint16 and uint32 [N, H]."""
    for n in range(halves_NH.shape[0]):
        for h in range(halves_NH.shape[1]):
            out_NH[n, h] = _single(halves_NH[n, h])


@njit(nogil=True, cache=True)
def widen_chosen(
    halves_NH: np.ndarray, offsets: np.ndarray, chosen_C: np.ndarray, out_offsets: np.ndarray, out_NH: np.ndarray
) -> None:
    """As `widen`, for the vectors of the passages `chosen_C` (int64 [C]) only, one passage after the other.

    Args:
        halves_NH: uint16 [N, H].
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1].
        chosen_C: int64 [C].
        out_offsets: int64 [C + 1], where each chosen passage's rows begin in `out_NH`.
        out_NH: uint32 [rows of all chosen passages, H], overwritten.
    """
    for c in range(chosen_C.shape[0]):
        begin, end = offsets[chosen_C[c]], offsets[chosen_C[c] + 1]
        widen(halves_NH[begin:end], out_NH[out_offsets[c] : out_offsets[c + 1]])


def widened(stored_NH: np.ndarray) -> np.ndarray:
    """Return float32 [N, H] of float16 [N, H]."""
    out_NH = np.empty(stored_NH.shape, np.float32)
    widen(stored_NH.view(np.uint16), out_NH.view(np.uint32))
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
    widen_chosen(stored_NH.view(np.uint16), offsets, chosen_C, out_offsets, out_NH.view(np.uint32))
    return out_NH, out_offsets
