"""Exact search over segments: every passage that shares a term with the query is scored in float32.

Legend: T terms of a query, S segments, N passages of a segment, F passages found, Q queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from diffretriever.search.sparse import kernels
from diffretriever.search.sparse.segment import PostingsSegment, check_ids, check_weights


class Found(NamedTuple):
    """The passages found for one query, by score descending, then by number ascending."""

    numbers: np.ndarray
    """int32 [F], their numbers in the order of the index."""
    scores: np.ndarray
    """float32 [F], above 0."""


def search(
    segments: Sequence[PostingsSegment],
    numbers: Sequence[np.ndarray],
    query_ids: np.ndarray,
    query_weights: np.ndarray,
    k: int,
) -> Found:
    """Return the k best passages.

    Scores are inner products in float32, added in the order of the query's terms: of ascending ids, to the bit those of
    `scoring.sparse.sparse_scores`.

    Args:
        segments: of one vocabulary.
        numbers: for each segment int32 [N], the numbers of its passages, by which ties are ranked; negative for
            passages not to be found. No two are equal.
        query_ids: integers [T], in any order; one that is there twice counts twice.
        query_weights: float32 [T], above 0.
        k: at least 1.

    Raises:
        ValueError: the segments have different vocabularies, an id is outside, a weight is not above 0 and finite,
            a score exceeds float32, or k is below 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}: ask for at least one passage")
    ids_T, weights_T = np.asarray(query_ids, np.int64), np.asarray(query_weights, np.float32)
    assert len(ids_T) == len(weights_T), "one weight an id"
    sizes = {segment.vocab_size for segment in segments}
    if len(sizes) > 1:
        raise ValueError(f"the segments have vocabularies of {sorted(sizes)} tokens: build them with one retriever")
    for size in sizes:
        check_ids(ids_T, size)
    check_weights(weights_T, "the query's impacts")
    totals_R, positions_T = np.empty(kernels.BLOCK_ROWS, np.float32), np.empty(len(ids_T), np.int64)
    pool = kernels.new_pool(min(k, sum(segment.passages for segment in segments)))
    for segment, numbers_N in zip(segments, numbers, strict=True):
        assert len(numbers_N) == segment.passages, "a number a passage"
        kernels.look_up(segment.terms_D, ids_T, positions_T)
        arrays = segment.starts_DB, segment.rows_P, segment.weights_P
        scores = totals_R, totals_R.view(np.int32)
        kernels.collect(arrays, (positions_T, weights_T), numbers_N, scores, pool, k)
    found = Found(*kernels.decoded(np.sort(kernels.best_keys(pool, k))[::-1]))
    if len(found.scores) and found.scores[0] == np.inf:
        raise ValueError("scores of this query exceed float32: scale its weights or the passages' down")
    return found


def search_many(
    segments: Sequence[PostingsSegment],
    numbers: Sequence[np.ndarray],
    queries: tuple[np.ndarray, np.ndarray, np.ndarray],
    k: int,
    *,
    threads: int = 1,
) -> list[Found]:
    """Search for Q queries, `threads` of them at a time, as `search` does for one.

    Args:
        segments: of one vocabulary.
        numbers: as in `search`.
        queries: ids and weights of all queries together, and int64 offsets [Q + 1]; query i owns offsets[i] to
            offsets[i + 1].
        k: at least 1.
        threads: cores to use; the inner loops hold no lock.

    Raises:
        ValueError: as `search`.
    """
    ids, weights, offsets = queries

    def one(number: int) -> Found:
        own = slice(offsets[number], offsets[number + 1])
        return search(segments, numbers, ids[own], weights[own], k)

    if threads == 1:
        return [one(number) for number in range(len(offsets) - 1)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(len(offsets) - 1)))
