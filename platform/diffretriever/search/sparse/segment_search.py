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

Legend: T terms of a query, S segments, F passages found, C candidates, R rows of a block, Q queries, N passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from diffretriever.representations import offsets_of
from diffretriever.search.sparse import kernels
from diffretriever.search.sparse.segment import PostingsSegment, check_ids, check_weights, first_out_of_order

_UNITS = 2**30
"""The highest bound of a query is about so many units."""
_SMALLEST_UNIT = 2.0**-126
_ROUNDING_UNITS = 256
"""Both differences of the margin, for each term."""
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
    of the passages that tie at the end stay is for the caller, who knows their ids: `scoring.hits.top_k` cuts to k.

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
    plan = plan_query(segments, query_ids, query_weights)
    masks = _masks(segments, deleted)
    firsts = offsets_of([segment.passages for segment in segments])
    places_C = _candidates(segments, plan, masks, firsts, k)
    return _ranked(places_C, _scores(segments, plan, firsts, places_C), firsts, k)


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

    numbers = range(len(query_offsets) - 1)
    if threads == 1:
        return [one(number) for number in numbers]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, numbers))


class Plan(NamedTuple):
    """What segments have of a query."""

    positions_ST: np.ndarray
    """int64, the terms' places in each segment's `terms_D`; -1 where it lacks the term."""
    weights_T: np.ndarray
    """float32, the query's weights."""
    products_ST: np.ndarray
    """float64, exact: each weight times the largest of any passage of the segment; 0 where it lacks the term."""

    @property
    def highest(self) -> float:
        """No score is above this by more than rounding."""
        return float(self.products_ST.sum(axis=1).max(initial=0))

    def steps(self, unit: float) -> np.ndarray:
        """Return int32 [S, T]: what a step of each term's code adds to a bound, in units, rounded up."""
        # One more than the floor is above the quotient even where the quotient was rounded.
        return (np.floor(self.products_ST / (255 * unit)) + (self.positions_ST >= 0)).astype(np.int32)


def plan_query(segments: Sequence[PostingsSegment], query_ids: np.ndarray, query_weights: np.ndarray) -> Plan:
    """Find the query's terms in each segment.

    Raises:
        ValueError: the segments have different vocabularies, ids do not ascend or are outside, or a weight is not
            above 0 and finite.
    """
    ids_T, weights_T = np.asarray(query_ids, np.int64), np.asarray(query_weights, np.float32)
    assert len(ids_T) == len(weights_T), "one weight an id"
    sizes = {segment.vocab_size for segment in segments}
    if len(sizes) > 1:
        raise ValueError(f"the segments have vocabularies of {sorted(sizes)} tokens: build them with one retriever")
    for size in sizes:
        check_ids(ids_T, size)
    if first_out_of_order(ids_T, np.array([0, len(ids_T)])) is not None:
        raise ValueError("the query's ids do not ascend: sort its impacts by id, each id once")
    check_weights(weights_T, "the query's impacts")
    positions_ST = np.empty((len(segments), len(ids_T)), np.int64)
    peaks_ST = np.empty(positions_ST.shape, np.float32)
    for segment, positions_T, peaks_T in zip(segments, positions_ST, peaks_ST, strict=True):
        kernels.look_up(segment.terms_D, segment.peaks_D, ids_T, positions_T, peaks_T)
    return Plan(positions_ST, weights_T, peaks_ST.astype(np.float64) * weights_T)


def _masks(segments: Sequence[PostingsSegment], deleted: Sequence[np.ndarray | None] | None) -> list[np.ndarray]:
    if deleted is None:
        return [_NONE_DELETED] * len(segments)
    masks = [_NONE_DELETED if mask is None else np.asarray(mask, dtype=bool) for mask in deleted]
    for segment, mask in zip(segments, masks, strict=True):
        assert mask is _NONE_DELETED or mask.shape == (segment.passages,), "a mask has one entry a passage"
    return masks


def _candidates(
    segments: Sequence[PostingsSegment], plan: Plan, masks: Sequence[np.ndarray], firsts: np.ndarray, k: int
) -> np.ndarray:
    """Return the places, ascending, of all passages that may be among the k best or tie with the k-th."""
    if plan.highest > _LARGEST_SCORE:
        raise ValueError("scores of this query may exceed float32: scale its weights or the passages' down")
    steps_ST = plan.steps(max(plan.highest / _UNITS, _SMALLEST_UNIT))
    terms_S = (plan.positions_ST >= 0).sum(axis=1)
    margin = int((steps_ST.sum(axis=1) + (254 + _ROUNDING_UNITS) * (terms_S + 2)).max(initial=0))
    # Untouched pages of these cost nothing, and hardly any is touched.
    pool = np.empty(firsts[-1], np.int32), np.empty(firsts[-1], np.int64)
    bounds_R, state = np.empty(kernels.BLOCK_ROWS, np.int32), kernels.new_state(k)
    for number in np.flatnonzero(terms_S).tolist():
        segment = segments[number]
        arrays = segment.starts_DB, segment.rows_P, segment.codes_P
        query = plan.positions_ST[number], steps_ST[number]
        places = int(firsts[number]), segment.passages
        kernels.collect(arrays, query, masks[number], places, (k, margin), bounds_R, pool, state)
    kernels.keep_best(pool, state, k, margin)
    return pool[1][: state[0]]


def _scores(segments: Sequence[PostingsSegment], plan: Plan, firsts: np.ndarray, places_C: np.ndarray) -> np.ndarray:
    scores_C, marks_R = np.zeros(len(places_C), np.float32), np.zeros(kernels.BLOCK_ROWS, np.int32)
    ends = np.searchsorted(places_C, firsts)
    for number in np.flatnonzero(np.diff(ends)).tolist():
        segment, own = segments[number], slice(ends[number], ends[number + 1])
        arrays = segment.starts_DB, segment.rows_P, segment.weights_P
        query = plan.positions_ST[number], plan.weights_T
        kernels.score(arrays, query, places_C[own] - firsts[number], marks_R, scores_C[own])
    return scores_C


def _ranked(places_C: np.ndarray, scores_C: np.ndarray, firsts: np.ndarray, k: int) -> Found:
    floor = np.partition(scores_C, len(scores_C) - k)[len(scores_C) - k] if len(scores_C) > k else np.float32(0)
    # Products of tiny weights may have become 0, which says that nothing is shared.
    kept_F = np.flatnonzero((scores_C >= floor) & (scores_C > 0))
    kept_F = kept_F[np.argsort(-scores_C[kept_F], kind="stable")]
    segments_F = np.searchsorted(firsts, places_C[kept_F], side="right") - 1
    return Found(segments_F, places_C[kept_F] - firsts[segments_F], scores_C[kept_F])
