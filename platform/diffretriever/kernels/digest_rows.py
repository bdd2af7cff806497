"""The inner loop of numbering 128-bit digests, by open addressing: Python objects would take four times the memory.

Legend: N digests looked up, R rows, S slots (a power of two, at least twice R).
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def number(digests_N2: np.ndarray, slots_S: np.ndarray, stored_R2: np.ndarray, count: int, rows_N: np.ndarray) -> int:
    """Look digests up, those that are not there get the next rows; return how many rows there are then.

    Args:
        digests_N2: uint64.
        slots_S: int32, a row or -1; written.
        stored_R2: uint64, the digest of each row; written from `count` on.
        count: rows that there are.
        rows_N: int64; written.
    """
    mask = np.uint64(len(slots_S) - 1)
    for n in range(len(digests_N2)):
        first, second = digests_N2[n, 0], digests_N2[n, 1]
        slot = first & mask
        while slots_S[slot] >= 0 and (stored_R2[slots_S[slot], 0] != first or stored_R2[slots_S[slot], 1] != second):
            slot = (slot + np.uint64(1)) & mask
        if slots_S[slot] < 0:
            slots_S[slot] = count
            stored_R2[count, 0] = first
            stored_R2[count, 1] = second
            count += 1
        rows_N[n] = slots_S[slot]
    return count


@njit(nogil=True, cache=True)
def place(stored_R2: np.ndarray, count: int, slots_S: np.ndarray) -> None:
    """Fill empty slots (int32, all -1) with the first `count` rows."""
    mask = np.uint64(len(slots_S) - 1)
    for row in range(count):
        slot = stored_R2[row, 0] & mask
        while slots_S[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots_S[slot] = row
