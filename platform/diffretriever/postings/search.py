"""Exact search over segments: codes bound every score, the best bounds are scored exactly.

Why nothing is lost. For a query with weights a_t, a term's peak w_t and a passage's code c_t, rounded up,

    sum a_t w_t (c_t - 1) / 255  <  true score  <=  sum a_t w_t c_t / 255.

With a_t w_t / 255 rounded up to a whole number s_t of units, sum s_t c_t bounds the score from above, and exceeds it by
less than sum (s_t + 254). A score in float32 differs from the true one by T roundings of 2**-24 each and, where
products underflow, by T smallest numbers; the largest score is 2**30 units, so both together are under 65 (T + 2)
units. k passages with bounds of at least b therefore have float32 scores of at least b less that margin, and a passage
whose bound lies under b less the margin and twice that rounding cannot be among the k best.

Legend: T terms of a query, F passages found, C candidates, S candidates in one segment, Q queries, N passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from diffretriever.kernels import postings as kernels
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


class _Plan(NamedTuple):
    """A query in the terms of one segment; terms that the segment lacks are left out."""

    positions_T: np.ndarray
    weights_T: np.ndarray
    peaks_T: np.ndarray

    def steps(self, unit: float) -> np.ndarray:
        # One more than the floor is above the quotient even where the quotient was rounded.
        return (np.floor(self.peaks_T / (255 * unit)) + 1).astype(np.int32)


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
    ids_T, weights_T = np.asarray(query_ids, np.int64), np.asarray(query_weights, np.float32)
    _check(segments, ids_T, weights_T)
    plans = [_plan(segment, ids_T, weights_T) for segment in segments]
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


def _check(segments: Sequence[PostingsSegment], ids_T: np.ndarray, weights_T: np.ndarray) -> None:
    assert len(ids_T) == len(weights_T), "one weight an id"
    sizes = {segment.vocab_size for segment in segments}
    if len(sizes) > 1:
        raise ValueError(f"the segments have vocabularies of {sorted(sizes)} tokens: build them with one retriever")
    if len(ids_T) == 0:
        return
    if not (np.diff(ids_T) > 0).all():
        raise ValueError("the query's ids do not ascend: sort its impacts by id, each id once")
    for size in sizes:
        if ids_T[0] < 0 or ids_T[-1] >= size:
            wrong = ids_T[0] if ids_T[0] < 0 else ids_T[-1]
            raise ValueError(f"token id {wrong} is outside a vocabulary of {size}: use the retriever's own tokenizer")
    if not (weights_T.min() > 0 and weights_T.max() < np.inf):
        raise ValueError("the query's weights must be above 0 and finite: encode the query again")


def _masks(segments: Sequence[PostingsSegment], deleted: Sequence[np.ndarray | None] | None) -> list[np.ndarray]:
    if deleted is None:
        return [_NONE_DELETED] * len(segments)
    masks = [_NONE_DELETED if mask is None else np.asarray(mask, dtype=bool) for mask in deleted]
    for segment, mask in zip(segments, masks, strict=True):
        assert mask is _NONE_DELETED or mask.shape == (segment.passages,), "a mask has one entry a passage"
    return masks


def _plan(segment: PostingsSegment, ids_T: np.ndarray, weights_T: np.ndarray) -> _Plan:
    positions_T = np.searchsorted(segment.terms_D, ids_T)
    occurs_T = np.zeros(len(ids_T), dtype=bool)
    inside = positions_T < len(segment.terms_D)
    occurs_T[inside] = segment.terms_D[positions_T[inside]] == ids_T[inside]
    positions_T, weights_T = positions_T[occurs_T], weights_T[occurs_T]
    return _Plan(positions_T, weights_T, segment.peaks_D[positions_T].astype(np.float64) * weights_T)


def _candidates(
    segments: Sequence[PostingsSegment],
    plans: Sequence[_Plan],
    masks: Sequence[np.ndarray],
    firsts: np.ndarray,
    k: int,
) -> np.ndarray:
    """Return the places, ascending, of all passages that may be among the k best or tie with the k-th."""
    highest = max((float(plan.peaks_T.sum()) for plan in plans), default=0.0)
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
