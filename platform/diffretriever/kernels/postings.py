"""The inner loops of exact search in an inverted index over impacts: finding terms, and exact scores of a few passages.

Legend: D terms that occur, B blocks, P postings, T terms of a query, R rows of a block, S survivors.
"""

from __future__ import annotations

import numpy as np
from numba import njit

BLOCK_ROWS = 1 << 16
"""Passages of a block: a row within it fits 16 bits."""


@njit(nogil=True, cache=True)
def look_up(
    terms_D: np.ndarray, peaks_D: np.ndarray, ids_T: np.ndarray, positions_T: np.ndarray, peaks_T: np.ndarray
) -> None:
    """Find a query's terms in a segment.

    Args:
        terms_D: int32, ascending.
        peaks_D: float32, the largest weight of each.
        ids_T: int64, what to find.
        positions_T: int64, written: the place of each in D, -1 where it is not there.
        peaks_T: float32, written: its peak, 0 where it is not there.
    """
    for t in range(len(ids_T)):
        position = np.searchsorted(terms_D, ids_T[t])
        occurs = position < len(terms_D) and terms_D[position] == ids_T[t]
        positions_T[t] = position if occurs else -1
        peaks_T[t] = peaks_D[position] if occurs else np.float32(0)


@njit(nogil=True, cache=True)
def score(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    survivors_S: np.ndarray,
    marks_R: np.ndarray,
    scores_S: np.ndarray,
) -> None:
    """Add up the exact scores of chosen passages, in float32 and in the query's order of terms.

    Args:
        arrays: starts and rows as in `bounds.collect`, and float32 [P], weights.
        query: int64 [T], places of the query's terms in D, negative for those that are not there, and float32 [T],
            their weights.
        survivors_S: int64, numbers of passages in the segment, ascending.
        marks_R: int32 [BLOCK_ROWS], zeros before and after.
        scores_S: float32, zeros; written.
    """
    first = 0
    while first < len(survivors_S):
        block = survivors_S[first] // BLOCK_ROWS
        last = first
        while last < len(survivors_S) and survivors_S[last] // BLOCK_ROWS == block:
            last += 1
            marks_R[survivors_S[last - 1] % BLOCK_ROWS] = last
        _add_weights(arrays, query, block, marks_R, scores_S)
        for s in range(first, last):
            marks_R[survivors_S[s] % BLOCK_ROWS] = 0
        first = last


@njit(nogil=True, cache=True)
def _add_weights(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    block: int,
    marks_R: np.ndarray,
    scores_S: np.ndarray,
) -> None:
    starts_DB, rows_P, weights_P = arrays
    positions_T, query_weights_T = query
    for t in range(len(positions_T)):
        if positions_T[t] < 0:
            continue
        begin, end = starts_DB[positions_T[t], block], starts_DB[positions_T[t], block + 1]
        rows, weights = rows_P[begin:end], weights_P[begin:end]
        for p in range(len(rows)):
            mark = marks_R[rows[p]]
            if mark > 0:
                scores_S[mark - 1] += query_weights_T[t] * weights[p]
