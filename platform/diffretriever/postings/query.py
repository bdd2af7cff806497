"""A query in the terms of each segment.

Legend: T terms of a query, of one segment where they stand in a `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diffretriever.postings.checks import check_ids, check_weights, first_out_of_order
from diffretriever.postings.segment import PostingsSegment


class Plan(NamedTuple):
    """What a segment has of a query; terms that it lacks are left out."""

    positions_T: np.ndarray
    """int64, the terms' places in the segment's `terms_D`."""
    weights_T: np.ndarray
    """float32, the query's weights."""
    products_T: np.ndarray
    """float64, exact: each weight times the largest of any passage."""

    def steps(self, unit: float) -> np.ndarray:
        """Return int32 [T]: what a step of each term's code adds to a bound, in units, rounded up."""
        # One more than the floor is above the quotient even where the quotient was rounded.
        return (np.floor(self.products_T / (255 * unit)) + 1).astype(np.int32)


def plan_query(segments: Sequence[PostingsSegment], query_ids: np.ndarray, query_weights: np.ndarray) -> list[Plan]:
    """Return a plan for each segment.

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
    return [_plan(segment, ids_T, weights_T) for segment in segments]


def _plan(segment: PostingsSegment, ids_T: np.ndarray, weights_T: np.ndarray) -> Plan:
    positions_T = np.searchsorted(segment.terms_D, ids_T)
    occurs_T = np.zeros(len(ids_T), dtype=bool)
    inside_T = positions_T < len(segment.terms_D)
    occurs_T[inside_T] = segment.terms_D[positions_T[inside_T]] == ids_T[inside_T]
    positions_T, weights_T = positions_T[occurs_T], weights_T[occurs_T]
    return Plan(positions_T, weights_T, segment.peaks_D[positions_T].astype(np.float64) * weights_T)
