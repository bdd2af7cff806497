"""The inner loops of exact search in an inverted index over impacts: upper bounds of scores, from 8-bit codes.

A term's postings are in ascending order of passages. 65,536 passages are a block: a passage's row within it fits 16
bits, and the bounds of a block's scores stay in the processor's second-level cache while terms are added to them.
Bounds are whole multiples of a unit, so that adding rounds nothing.

No term is skipped because of its small weight, though its passages alone could not be among the best: to add a posting
in a row takes a nanosecond, and to look one up for a passage that other terms left takes tens.

Legend: D terms that occur, B blocks, P postings, N passages, T terms of a query, R rows of a block, C candidates,
L rows looked at together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from diffretriever.kernels.postings import BLOCK_ROWS

_LOOK = 128
_BINS = 1 << 13
_BIN_WIDTH = 1 << 18
_FEWEST_CANDIDATES = 1 << 13


@njit(nogil=True, cache=True)
def collect(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    deleted_N: np.ndarray,
    places: tuple[int, int],
    limits: tuple[int, int],
    bounds_R: np.ndarray,
    pool: tuple[np.ndarray, np.ndarray],
    state: np.ndarray,
) -> None:
    """Add a segment's passages that may be among the k best to the candidates of the segments before it.

    Args:
        arrays: uint32 [D, B + 1], first posting of each term in each block, the last column its end; uint16 [P], rows;
            uint8 [P], codes.
        query: int64 [T], places of the query's terms in D, negative for those that are not there, and int32 [T], what
            a step of each term's code is worth.
        deleted_N: bool, or empty if no passage is deleted.
        places: what the segment's first passage counts as, the others following, and N.
        limits: k, at least 1, and the margin, by how much a bound may exceed its score.
        bounds_R: int32 [BLOCK_ROWS], for use in here.
        pool: upper bounds int32 and places int64 of the candidates, room for every passage of all segments.
        state: int64 [3], see `new_state`; changed.
    """
    starts_DB, rows_P, codes_P = arrays
    first_place, n_passages = places
    bounds_C, places_C = pool
    k, margin = limits
    for block in range(starts_DB.shape[1] - 1):
        first_row = block * BLOCK_ROWS
        # Small segments are common: only rows that are there are looked at.
        n_rows = min(BLOCK_ROWS, -(-(n_passages - first_row) // _LOOK) * _LOOK)
        _add_terms(starts_DB, rows_P, codes_P, query, block, bounds_R[:n_rows])
        for row in range(0, n_rows, _LOOK):
            bounds_L = bounds_R[row : row + _LOOK]
            threshold = np.int32(state[1])
            if not _any_reaches(bounds_L, threshold):
                continue
            deleted_L = deleted_N[first_row + row : first_row + row + _LOOK]
            place = first_place + first_row + row
            state[0] = _append(bounds_L, deleted_L, place, threshold, bounds_C, places_C, state[0])
            if state[0] >= state[2]:
                keep_best(pool, state, k, margin)


def new_state(k: int) -> np.ndarray:
    """Return the state of a search for the k best: candidates there are, what a bound must reach, when to drop some."""
    return np.array([0, 1, max(_FEWEST_CANDIDATES, 4 * k)])


@njit(nogil=True, cache=True)
def _add_terms(
    starts_DB: np.ndarray,
    rows_P: np.ndarray,
    codes_P: np.ndarray,
    query: tuple[np.ndarray, np.ndarray],
    block: int,
    bounds_R: np.ndarray,
) -> None:
    positions_T, steps_T = query
    bounds_R[:] = 0
    for t in range(len(positions_T)):
        if positions_T[t] < 0:
            continue
        begin, end = starts_DB[positions_T[t], block], starts_DB[positions_T[t], block + 1]
        rows, codes, step = rows_P[begin:end], codes_P[begin:end], steps_T[t]
        for p in range(len(rows)):
            bounds_R[rows[p]] = np.int32(bounds_R[rows[p]] + np.int32(step * np.int32(codes[p])))


@njit(nogil=True, cache=True)
def _any_reaches(bounds_L: np.ndarray, threshold: np.int32) -> bool:
    # Without a branch in the loop it becomes vector instructions.
    found = np.uint8(0)
    for i in range(_LOOK):
        found |= np.uint8(bounds_L[i] >= threshold)
    return found != 0


@njit(nogil=True, cache=True)
def _append(
    bounds_L: np.ndarray,
    deleted_L: np.ndarray,
    place: int,
    threshold: np.int32,
    bounds_C: np.ndarray,
    places_C: np.ndarray,
    count: int,
) -> int:
    for i in range(_LOOK):
        if bounds_L[i] >= threshold and not (i < len(deleted_L) and deleted_L[i]):
            bounds_C[count] = bounds_L[i]
            places_C[count] = place + i
            count += 1
    return count


@njit(nogil=True, cache=True)
def keep_best(pool: tuple[np.ndarray, np.ndarray], state: np.ndarray, k: int, margin: int) -> None:
    """Raise the threshold to where the k best bounds begin, less the margin; drop, in place, what lies below."""
    bounds_C, places_C = pool
    count, threshold = state[0], np.int32(state[1])
    if count >= k:
        histogram = np.zeros(_BINS, np.int64)
        for c in range(count):
            histogram[bounds_C[c] // _BIN_WIDTH] += 1
        lowest = _BINS
        better = 0
        while better < k:
            lowest -= 1
            better += histogram[lowest]
        threshold = max(threshold, np.int32(lowest * _BIN_WIDTH - margin))
    kept = 0
    for c in range(count):
        if bounds_C[c] >= threshold:
            bounds_C[kept], places_C[kept] = bounds_C[c], places_C[c]
            kept += 1
    state[0], state[1], state[2] = kept, threshold, max(state[2], 2 * kept)
