"""Exact search over segments: codes bound every score, and the passages with the best bounds are scored exactly.

Why nothing is lost. For a query with weights a_t, a term's peak w_t and a passage's code c_t, which is rounded up,

    sum a_t w_t (c_t - 1) / 255  <  true score  <=  sum a_t w_t c_t / 255,

over the terms that the passage has. Let s_t be a_t w_t / 255 in units, rounded up to a whole number. Then the bound,
sum s_t c_t, is at least the true score, and exceeds it by less than sum (s_t + 254). What float32 makes of a score
differs from it by at most T roundings of 2**-24, relative to at most 2**30 units, and, where products underflow, by T
halves of the smallest float32, which is under a unit: together fewer than 128 (T + 2) units.

If k passages have bounds of b or more, the k-th best score is therefore at least b less the excess and one such
difference. A passage that reaches it has a true score, and so a bound, of at least that less one more difference.
The margin is the excess and both differences; who lies further below b is dropped.

Legend: T terms of a query, F passages found, C candidates, S candidates in one segment, Q queries, N passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from diffretriever.kernels import postings as kernels
from diffretriever.postings.query import Plan, plan_query
from diffretriever.postings.segment import PostingsSegment

_UNITS = 2**30
_SMALLEST_UNIT = 2.0**-126
_ROUNDING_UNITS = 256
_LARGEST_SCORE = float(np.finfo(np.float32).max) / 2
_NONE_DELETED = np.zeros(0, dtype=bool)


class Found(NamedTuple):
    """The passages found for one query: by score descending, then by segment and row ascending."""

    segments: np.ndarray
    """int64 [F], which of the segments that were searched."""
    rows: np.ndarray
    """int64 [F], the passage's number in it."""
    scores: np.ndarray
    """float32 [F], above 0."""


def search(
    segments: Sequence[PostingsSegment],
    query_ids: np.ndarray,
    query_weights: np.ndarray,
    k: int,
    *,
    deleted: Sequence[np.ndarray | None] | None = None,
) -> Found:
    """Return the k best passages, and all others that score exactly as much as the k-th.

    Scores are the inner products of `scoring.sparse.sparse_scores`, to the bit: float32, added in order of ids. Which
    of the passages that tie at the end stay is for the caller, who knows their ids: `scoring.topk.top_k` cuts to k.

    Args:
        segments: of one vocabulary.
        query_ids: integers [T], ascending and unique.
        query_weights: float32 [T], above 0.
        k: at least 1.
        deleted: for each segment bool [N], True for passages not to be found, or None if there are none.

    Raises:
        ValueError: the query is not as described, its scores may exceed float32, or k is below 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}: ask for at least one passage")
    plans = plan_query(segments, query_ids, query_weights)
    masks = _masks(segments, deleted)
    firsts = np.cumsum([0, *(segment.passages for segment in segments)])
    places_C = _candidates(segments, plans, masks, firsts, k)
    scores_C = np.zeros(len(places_C), np.float32)
    ends = np.searchsorted(places_C, firsts)
    for number, (segment, plan) in enumerate(zip(segments, plans, strict=True)):
        mine = slice(ends[number], ends[number + 1])
        if mine.start == mine.stop:
            continue
        query = plan.positions_T, plan.weights_T
        rows_S = places_C[mine] - firsts[number]
        kernels.score(segment.starts_DB, segment.rows_P, segment.weights_P, query, rows_S, scores_C[mine])
    return _ranked(places_C, scores_C, firsts, k)


def search_many(
    segments: Sequence[PostingsSegment],
    query_ids: np.ndarray,
    query_weights: np.ndarray,
    query_offsets: np.ndarray,
    k: int,
    *,
    deleted: Sequence[np.ndarray | None] | None = None,
    threads: int = 1,
) -> list[Found]:
    """Search for Q queries, `threads` of them at a time, as `search` does for one.

    Args:
        segments: of one vocabulary.
        query_ids: integers, of all queries together.
        query_weights: float32, likewise.
        query_offsets: int64 [Q + 1]; query i owns offsets[i] to offsets[i + 1].
        k: at least 1.
        deleted: as in `search`.
        threads: cores to use; the inner loops hold no lock.

    Raises:
        ValueError: as `search`.
    """

    def one(number: int) -> Found:
        own = slice(query_offsets[number], query_offsets[number + 1])
        return search(segments, query_ids[own], query_weights[own], k, deleted=deleted)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(len(query_offsets) - 1)))


def _masks(segments: Sequence[PostingsSegment], deleted: Sequence[np.ndarray | None] | None) -> list[np.ndarray]:
    if deleted is None:
        return [_NONE_DELETED] * len(segments)
    masks = [_NONE_DELETED if mask is None else np.asarray(mask, dtype=bool) for mask in deleted]
    for segment, mask in zip(segments, masks, strict=True):
        assert mask is _NONE_DELETED or mask.shape == (segment.passages,), "a mask has one entry a passage"
    return masks


def _candidates(
    segments: Sequence[PostingsSegment],
    plans: Sequence[Plan],
    masks: Sequence[np.ndarray],
    firsts: np.ndarray,
    k: int,
) -> np.ndarray:
    """Return the places, ascending, of all passages that may be among the k best or tie with the k-th."""
    highest = max((float(plan.products_T.sum()) for plan in plans), default=0.0)
    if highest > _LARGEST_SCORE:
        raise ValueError("scores of this query may exceed float32: scale its weights or the passages' down")
    unit = max(highest / _UNITS, _SMALLEST_UNIT)
    steps = [plan.steps(unit) for plan in plans]
    margin = max((int(s.sum()) + (254 + _ROUNDING_UNITS) * (len(s) + 2) for s in steps), default=0)
    pool = np.empty(0, np.int32), np.empty(0, np.int64), np.int32(1)
    for segment, plan, step, mask, first in zip(segments, plans, steps, masks, firsts[:-1], strict=True):
        if len(step) == 0:
            continue
        query, arrays = (plan.positions_T, step), (segment.starts_DB, segment.rows_P, segment.codes_P)
        pool = kernels.collect(*arrays, query, mask, int(first), (k, margin), pool)
    return pool[1]


def _ranked(places_C: np.ndarray, scores_C: np.ndarray, firsts: np.ndarray, k: int) -> Found:
    floor = np.partition(scores_C, len(scores_C) - k)[len(scores_C) - k] if len(scores_C) > k else np.float32(0)
    # Products of tiny weights may have become 0, which says that nothing is shared.
    kept_F = np.flatnonzero((scores_C >= floor) & (scores_C > 0))
    kept_F = kept_F[np.argsort(-scores_C[kept_F], kind="stable")]
    segments_F = np.searchsorted(firsts, places_C[kept_F], side="right") - 1
    return Found(segments_F, places_C[kept_F] - firsts[segments_F], scores_C[kept_F])
