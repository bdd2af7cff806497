"""The inner loop of searching stored term scores for many queries: add up, keep the best.

Legend: Q queries, T terms of all queries, P postings, V vocabulary, D passages, K kept.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def best_passages(
    matrix: tuple[np.ndarray, np.ndarray, np.ndarray],
    queries: tuple[np.ndarray, np.ndarray],
    places_D: np.ndarray,
    kept_QK: np.ndarray,
    scores_QK: np.ndarray,
) -> None:
    """Find each query's best passages with a score above 0; equal scores are ranked by `places_D` ascending.

    Args:
        matrix: starts of the vocabulary's postings [V + 1], passages of the postings [P], their scores float32 [P].
        queries: starts of the queries' terms int64 [Q + 1], and the terms int64 [T]. Scores are added in this order.
        places_D: int64, the place of each passage in the order of ids.
        kept_QK: int64, written: passages, best first, then -1.
        scores_QK: float32, written: their scores.
    """
    starts_V, passages_P, weights_P = matrix
    offsets_Q, terms_T = queries
    totals_D = np.zeros(len(places_D), np.float32)
    touched_D = np.empty(len(places_D), np.int64)
    for q in range(len(kept_QK)):
        n_touched = 0
        for t in range(offsets_Q[q], offsets_Q[q + 1]):
            for p in range(starts_V[terms_T[t]], starts_V[terms_T[t] + 1]):
                passage = passages_P[p]
                if totals_D[passage] == 0:
                    touched_D[n_touched] = passage
                    n_touched += 1
                totals_D[passage] += weights_P[p]
        n_kept = 0
        for i in range(n_touched):
            n_kept = _insert(touched_D[i], totals_D, places_D, kept_QK[q], n_kept)
        _sort_heap(totals_D, places_D, kept_QK[q], n_kept)
        for k in range(kept_QK.shape[1]):
            scores_QK[q, k] = totals_D[kept_QK[q, k]] if k < n_kept else np.float32(0)
            if k >= n_kept:
                kept_QK[q, k] = -1
        for i in range(n_touched):
            totals_D[touched_D[i]] = 0


@njit(nogil=True, cache=True)
def _is_worse(a: int, b: int, totals_D: np.ndarray, places_D: np.ndarray) -> bool:
    if totals_D[a] != totals_D[b]:
        return bool(totals_D[a] < totals_D[b])
    return bool(places_D[a] > places_D[b])


@njit(nogil=True, cache=True)
def _insert(passage: int, totals_D: np.ndarray, places_D: np.ndarray, heap_K: np.ndarray, size: int) -> int:
    """Put a passage into a heap whose first is the worst, in the place of that where it is full."""
    if size < len(heap_K):
        child = size
        heap_K[child] = passage
        while child > 0 and _is_worse(heap_K[child], heap_K[(child - 1) // 2], totals_D, places_D):
            parent = (child - 1) // 2
            heap_K[child], heap_K[parent] = heap_K[parent], heap_K[child]
            child = parent
        return size + 1
    if _is_worse(heap_K[0], passage, totals_D, places_D):
        heap_K[0] = passage
        _sift(totals_D, places_D, heap_K, size)
    return size


@njit(nogil=True, cache=True)
def _sift(totals_D: np.ndarray, places_D: np.ndarray, heap_K: np.ndarray, size: int) -> None:
    parent = 0
    while True:
        worst = parent
        for child in (2 * parent + 1, 2 * parent + 2):
            if child < size and _is_worse(heap_K[child], heap_K[worst], totals_D, places_D):
                worst = child
        if worst == parent:
            return
        heap_K[parent], heap_K[worst] = heap_K[worst], heap_K[parent]
        parent = worst


@njit(nogil=True, cache=True)
def _sort_heap(totals_D: np.ndarray, places_D: np.ndarray, heap_K: np.ndarray, size: int) -> None:
    """Put the heap into order, best first."""
    for last in range(size - 1, 0, -1):
        heap_K[0], heap_K[last] = heap_K[last], heap_K[0]
        _sift(totals_D, places_D, heap_K, last)
