"""The inner loops of BM25: counting and weighing the terms of passages, and adding up the scores of a block of them.

Legend: Q queries, T terms of queries, W terms of all passages, P postings, V vocabulary, D passages, K kept, R passages
(rows) of a block.
"""

from __future__ import annotations

import numpy as np

from diffretriever.kernels import kernel
from diffretriever.search.sparse.kernels import BLOCK_ROWS, best_keys, new_pool, select


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
    scores: tuple[np.ndarray, np.ndarray],
    keys_QK: np.ndarray,
) -> None:
    """Find each query's best passages with a score above 0; of equal scores, those of the lowest numbers.

    Args:
        matrix: starts of the vocabulary's postings [V + 1], passages of the postings [P], ascending for each term, and
            their scores float32 [P].
        queries: starts of the queries' terms int64 [Q + 1], and the terms int64 [T]. Scores are added in this order.
        numbers_D: int32, the number of each passage in the order of ids; negative for those not to be found.
        scores: float32 [BLOCK_ROWS], for use in here, and the same memory as int32.
        keys_QK: uint64, written: keys as `sparse.kernels` has them, in any order, then 0.
    """
    offsets_Q, terms_T = queries
    totals_R, bits_R = scores
    k = keys_QK.shape[1]
    for q in range(len(keys_QK)):
        own_T = terms_T[offsets_Q[q] : offsets_Q[q + 1]]
        cursors_T, pool = matrix[0][own_T], new_pool(k)
        for first in range(0, len(numbers_D), BLOCK_ROWS):
            if _add_terms(matrix, own_T, cursors_T, first, totals_R):
                select(bits_R, numbers_D[first : first + BLOCK_ROWS], pool, k)
        keys_K = best_keys(pool, k)
        keys_QK[q, : len(keys_K)] = keys_K
        keys_QK[q, len(keys_K) :] = 0


@kernel()
def _add_terms(
    matrix: tuple[np.ndarray, np.ndarray, np.ndarray],
    terms_T: np.ndarray,
    cursors_T: np.ndarray,
    first: int,
    totals_R: np.ndarray,
) -> bool:
    """Add up the scores that a query's terms give the passages of a block; return whether there are any."""
    starts_V, passages_P, weights_P = matrix
    is_any = False
    totals_R[:] = 0
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
