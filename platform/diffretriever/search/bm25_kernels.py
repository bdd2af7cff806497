"""The inner loops of BM25: counting and weighing the terms of passages, and finding the best passages.

Legend: Q queries, T terms of queries, W terms of all passages, P postings, V vocabulary, D passages, K kept, R passages
(rows) of a block, L rows looked at together.
"""

from __future__ import annotations

import numpy as np

from diffretriever.kernels import kernel

_BLOCK_ROWS = 1 << 16
_LOOK = 128
"""Rows looked at together."""


@kernel()
def count_passages(terms_W: np.ndarray, offsets_D: np.ndarray, counts_V: np.ndarray, last_V: np.ndarray) -> None:
    """Count the passages that have each term.

    Args:
        terms_W: int32 [W], the terms of all passages, one passage after the other.
        offsets_D: int64 [D + 1], where the terms of each begin.
        counts_V: int64 [V], zeros; written.
        last_V: int32 [V], -1; written.
    """
    for passage in range(len(offsets_D) - 1):
        for w in range(offsets_D[passage], offsets_D[passage + 1]):
            term = terms_W[w]
            if last_V[term] != passage:
                last_V[term] = passage
                counts_V[term] += 1


@kernel()
def place_counts(
    passages: tuple[np.ndarray, np.ndarray],
    cursors_V: np.ndarray,
    last_V: np.ndarray,
    passages_P: np.ndarray,
    counts_P: np.ndarray,
) -> None:
    """Write each term's postings: its passages, ascending, and how often they have it.

    Args:
        passages: terms int32 [W] and offsets int64 [D + 1], as in `count_passages`.
        cursors_V: int64 [V], each term's first posting; moved on.
        last_V: int32 [V], -1; written.
        passages_P: int32 [P], written.
        counts_P: float32 [P], written.
    """
    terms_W, offsets_D = passages
    for passage in range(len(offsets_D) - 1):
        for w in range(offsets_D[passage], offsets_D[passage + 1]):
            term = terms_W[w]
            if last_V[term] != passage:
                last_V[term] = passage
                passages_P[cursors_V[term]] = passage
                counts_P[cursors_V[term]] = 0
                cursors_V[term] += 1
            counts_P[cursors_V[term] - 1] += np.float32(1)


@kernel()
def weigh(matrix: tuple[np.ndarray, np.ndarray, np.ndarray], idf_V: np.ndarray, norms_D: np.ndarray) -> None:
    """Put the weights of postings in the place of their counts.

    Args:
        matrix: starts of the vocabulary's postings int64 [V + 1], their passages int32 [P], and counts float32 [P],
            overwritten.
        idf_V: float32 [V].
        norms_D: float64 [D], what a passage's length adds to its counts.
    """
    starts_V, passages_P, counts_P = matrix
    for term in range(len(idf_V)):
        idf = np.float64(idf_V[term])
        for p in range(starts_V[term], starts_V[term + 1]):
            count = np.float64(counts_P[p])
            counts_P[p] = np.float32(idf * (count / (norms_D[passages_P[p]] + count)))


@kernel()
def best_passages(
    matrix: tuple[np.ndarray, np.ndarray, np.ndarray],
    queries: tuple[np.ndarray, np.ndarray],
    numbers_D: np.ndarray,
    kept_QK: np.ndarray,
    scores_QK: np.ndarray,
) -> None:
    """Find each query's best passages with a score above 0; equal scores are ranked by `numbers_D` ascending.

    A block of passages is scored at a time, so that its scores stay in the processor's second-level cache.

    Args:
        matrix: starts of the vocabulary's postings [V + 1], passages of the postings [P], ascending for each term, and
            their scores float32 [P].
        queries: starts of the queries' terms int64 [Q + 1], and the terms int64 [T]. Scores are added in this order.
        numbers_D: int32, the number of each passage in the order of ids; negative for those not to be found.
        kept_QK: int64, written: passages, best first, then -1.
        scores_QK: float32, written: their scores.
    """
    offsets_Q, terms_T = queries
    totals_R = np.zeros(-(-min(len(numbers_D), _BLOCK_ROWS) // _LOOK) * _LOOK, np.float32)
    for q in range(len(kept_QK)):
        own_T = terms_T[offsets_Q[q] : offsets_Q[q + 1]]
        cursors_T = matrix[0][own_T]
        kept_K, scores_K = kept_QK[q], scores_QK[q]
        size = 0
        for first in range(0, len(numbers_D), _BLOCK_ROWS):
            if not _add_terms(matrix, own_T, cursors_T, first, totals_R):
                continue
            for row in range(0, min(len(numbers_D) - first, len(totals_R)), _LOOK):
                lowest = scores_K[0] if size == len(kept_K) else np.float32(0)
                totals_L = totals_R[row : row + _LOOK]
                if _any_reaches(totals_L, lowest):
                    size = _insert_all(totals_L, first + row, numbers_D, kept_K, scores_K, size)
            totals_R[:] = 0
        _sort_heap(numbers_D, kept_K, scores_K, size)
        kept_K[size:] = -1
        scores_K[size:] = 0


@kernel()
def _add_terms(
    matrix: tuple[np.ndarray, np.ndarray, np.ndarray],
    terms_T: np.ndarray,
    cursors_T: np.ndarray,
    first: int,
    totals_R: np.ndarray,
) -> bool:
    """Add the scores that a query's terms give the passages of a block; return whether there are any."""
    starts_V, passages_P, weights_P = matrix
    is_any = False
    for t in range(len(terms_T)):
        p, end = cursors_T[t], starts_V[terms_T[t] + 1]
        while p < end and passages_P[p] < first + len(totals_R):
            # Passages of a damaged index may be in any order.
            if passages_P[p] >= first:
                totals_R[passages_P[p] - first] += weights_P[p]
            p += 1
        is_any |= p > cursors_T[t]
        cursors_T[t] = p
    return is_any


@kernel()
def _any_reaches(totals_L: np.ndarray, lowest: np.float32) -> bool:
    # Without a branch in the loop it becomes vector instructions.
    found = np.uint8(0)
    for i in range(_LOOK):
        found |= np.uint8(totals_L[i] >= lowest) & np.uint8(totals_L[i] > 0)
    return found != 0


@kernel()
def _insert_all(
    totals_L: np.ndarray, first: int, numbers_D: np.ndarray, kept_K: np.ndarray, scores_K: np.ndarray, size: int
) -> int:
    """Put passages into a heap whose first is the worst, in the place of that where it is full; return its size."""
    for i in range(min(len(totals_L), len(numbers_D) - first)):
        total, passage = totals_L[i], first + i
        if not total > 0 or numbers_D[passage] < 0:
            continue
        if size < len(kept_K):
            kept_K[size], scores_K[size] = passage, total
            _raise(numbers_D, kept_K, scores_K, size)
            size += 1
        elif total > scores_K[0] or (total == scores_K[0] and numbers_D[passage] < numbers_D[kept_K[0]]):
            kept_K[0], scores_K[0] = passage, total
            _sift(numbers_D, kept_K, scores_K, size)
    return size


@kernel()
def _is_worse(a: int, b: int, numbers_D: np.ndarray, kept_K: np.ndarray, scores_K: np.ndarray) -> bool:
    if scores_K[a] != scores_K[b]:
        return bool(scores_K[a] < scores_K[b])
    return bool(numbers_D[kept_K[a]] > numbers_D[kept_K[b]])


@kernel()
def _swap(a: int, b: int, kept_K: np.ndarray, scores_K: np.ndarray) -> None:
    kept_K[a], kept_K[b] = kept_K[b], kept_K[a]
    scores_K[a], scores_K[b] = scores_K[b], scores_K[a]


@kernel()
def _raise(numbers_D: np.ndarray, kept_K: np.ndarray, scores_K: np.ndarray, child: int) -> None:
    while child > 0 and _is_worse(child, (child - 1) // 2, numbers_D, kept_K, scores_K):
        _swap(child, (child - 1) // 2, kept_K, scores_K)
        child = (child - 1) // 2


@kernel()
def _sift(numbers_D: np.ndarray, kept_K: np.ndarray, scores_K: np.ndarray, size: int) -> None:
    parent = 0
    while True:
        worst = parent
        for child in (2 * parent + 1, 2 * parent + 2):
            if child < size and _is_worse(child, worst, numbers_D, kept_K, scores_K):
                worst = child
        if worst == parent:
            return
        _swap(parent, worst, kept_K, scores_K)
        parent = worst


@kernel()
def _sort_heap(numbers_D: np.ndarray, kept_K: np.ndarray, scores_K: np.ndarray, size: int) -> None:
    """Put the heap into order, best first."""
    for last in range(size - 1, 0, -1):
        _swap(0, last, kept_K, scores_K)
        _sift(numbers_D, kept_K, scores_K, last)
