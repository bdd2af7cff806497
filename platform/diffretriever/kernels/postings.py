"""The inner loops of exact search in an inverted index over impacts: bounds from 8-bit codes, then exact scores.

A term's postings are in ascending order of passages. 65,536 passages are a block: a passage's row within it fits 16
bits, and the bounds of a block's scores stay in the processor's second-level cache while terms are added to them.
Bounds are whole multiples of a unit, so that adding rounds nothing.

No term is left out because of its small weight: with twenty terms to a query and a thousand passages wanted, the
k-th best score is so small a part of the largest possible one that hardly a term could be.

Legend: D terms that occur, B blocks, P postings, N passages, T terms of a query, R rows of a block, C candidates,
S survivors, L rows looked at together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

BLOCK_ROWS = 1 << 16
_LOOK = 128
_BINS = 1 << 13
_BIN_WIDTH = 1 << 18
_FEWEST_CANDIDATES = 1 << 13


@njit(nogil=True, cache=True)
def collect(
    starts_DB: np.ndarray,
    rows_P: np.ndarray,
    codes_P: np.ndarray,
    query: tuple[np.ndarray, np.ndarray],
    deleted_N: np.ndarray,
    first_place: int,
    limits: tuple[int, int],
    pool: tuple[np.ndarray, np.ndarray, np.int32],
) -> tuple[np.ndarray, np.ndarray, np.int32]:
    """Add a segment's passages that may be among the k best to the candidates of the segments before it.

    Args:
        starts_DB: uint32 [D, B + 1], first posting of each term in each block; the last column is its end.
        rows_P: uint16.
        codes_P: uint8.
        query: int64 [T], places of the query's terms in D, and int32 [T], what a step of each term's code is worth.
        deleted_N: bool, or empty if no passage is deleted.
        first_place: what the segment's first passage counts as; the others follow.
        limits: k, at least 1, and the margin, by how much a bound may exceed its score.
        pool: upper bounds int32 [C], places int64 [C], and the threshold, at least 1: what a bound must reach to
            be a candidate.

    Returns:
        The pool, in order of places.
    """
    k, margin = limits
    count, threshold = len(pool[0]), pool[2]
    n_blocks = starts_DB.shape[1] - 1
    # Untouched pages of these cost nothing, and hardly any is touched.
    bounds_C = np.empty(count + n_blocks * BLOCK_ROWS, np.int32)
    places_C = np.empty(count + n_blocks * BLOCK_ROWS, np.int64)
    bounds_C[:count], places_C[:count] = pool[0], pool[1]
    full = max(_FEWEST_CANDIDATES, 4 * k)
    bounds_R = np.empty(BLOCK_ROWS, np.int32)
    for block in range(n_blocks):
        _add_terms(starts_DB, rows_P, codes_P, query, block, bounds_R)
        first_row = block * BLOCK_ROWS
        for row in range(0, BLOCK_ROWS, _LOOK):
            bounds_L = bounds_R[row : row + _LOOK]
            if not _any_reaches(bounds_L, threshold):
                continue
            deleted_L = deleted_N[first_row + row : first_row + row + _LOOK]
            place = first_place + first_row + row
            count = _append(bounds_L, deleted_L, place, threshold, bounds_C, places_C, count)
            if count >= full:
                count, threshold = _keep_best(bounds_C, places_C, count, threshold, k, margin)
                full = max(full, 2 * count)
    count, threshold = _keep_best(bounds_C, places_C, count, threshold, k, margin)
    return bounds_C[:count], places_C[:count], threshold


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
def _keep_best(
    bounds_C: np.ndarray, places_C: np.ndarray, count: int, threshold: np.int32, k: int, margin: int
) -> tuple[int, np.int32]:
    """Raise the threshold to where the k best bounds begin, less the margin; drop, in place, what lies below."""
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
    return kept, threshold


@njit(nogil=True, cache=True)
def score(
    starts_DB: np.ndarray,
    rows_P: np.ndarray,
    weights_P: np.ndarray,
    query: tuple[np.ndarray, np.ndarray],
    survivors_S: np.ndarray,
    scores_S: np.ndarray,
) -> None:
    """Add up the exact scores of chosen passages, in float32 and in the query's order of terms.

    Args:
        starts_DB: as in `collect`.
        rows_P: uint16.
        weights_P: float32.
        query: int64 [T], places of the query's terms in D, and float32 [T], their weights.
        survivors_S: int64, numbers of passages in the segment, ascending.
        scores_S: float32, zeros; written.
    """
    marks_R = np.zeros(BLOCK_ROWS, np.int32)
    first = 0
    while first < len(survivors_S):
        block = survivors_S[first] // BLOCK_ROWS
        last = first
        while last < len(survivors_S) and survivors_S[last] // BLOCK_ROWS == block:
            last += 1
            marks_R[survivors_S[last - 1] % BLOCK_ROWS] = last
        _add_weights(starts_DB, rows_P, weights_P, query, block, marks_R, scores_S)
        for s in range(first, last):
            marks_R[survivors_S[s] % BLOCK_ROWS] = 0
        first = last


@njit(nogil=True, cache=True)
def _add_weights(
    starts_DB: np.ndarray,
    rows_P: np.ndarray,
    weights_P: np.ndarray,
    query: tuple[np.ndarray, np.ndarray],
    block: int,
    marks_R: np.ndarray,
    scores_S: np.ndarray,
) -> None:
    positions_T, query_weights_T = query
    for t in range(len(positions_T)):
        begin, end = starts_DB[positions_T[t], block], starts_DB[positions_T[t], block + 1]
        rows, weights = rows_P[begin:end], weights_P[begin:end]
        for p in range(len(rows)):
            mark = marks_R[rows[p]]
            if mark > 0:
                scores_S[mark - 1] += query_weights_T[t] * weights[p]
