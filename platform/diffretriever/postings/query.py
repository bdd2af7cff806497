"""A query in the terms of each segment.

Legend: T terms of a query, S segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diffretriever.kernels.postings import look_up
from diffretriever.postings.checks import check_ids, check_weights, first_out_of_order
from diffretriever.postings.segment import PostingsSegment


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
        look_up(segment.terms_D, segment.peaks_D, ids_T, positions_T, peaks_T)
    return Plan(positions_ST, weights_T, peaks_ST.astype(np.float64) * weights_T)
