"""Weighted sums of dense scores within bounds and of other lists: few of the dense scores need be exact.

Legend: C passages of a dense list, U passages in any list of a query.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, Self

import numpy as np

from diffretriever.scoring.hits import Hits, Passages, TopK, each_of, kth_largest

_LACKING = -1
"""In place of the position of a passage that a list lacks."""


@dataclass(frozen=True)
class BoundedList:
    """One query's best passages, each score within bounds.

    Attributes:
        keys_C: int64, ascending: what `score` knows the passages by.
        numbers_C: int32, the passages' numbers.
        least_C: float64, the least that each can score; the exact score once it is known.
        most_C: float64, the most.
        last: the exact score of the last passage of the list.
        score: returns the exact scores of some passages (float32), given by their keys.
    """

    keys_C: np.ndarray
    numbers_C: np.ndarray
    least_C: np.ndarray
    most_C: np.ndarray
    last: float
    score: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def best(
        cls,
        keys_C: np.ndarray,
        numbers_C: np.ndarray,
        bounds: tuple[np.ndarray, np.ndarray],
        depth: int,
        score: Callable[[np.ndarray], np.ndarray],
    ) -> Self:
        """Return the `depth` best of at least so many passages; scores around that of the last one become exact.

        Args:
            keys_C: int64, ascending.
            numbers_C: int32.
            bounds: float [C] each, the least and the most that a passage can score.
            depth: passages of the list.
            score: returns the exact scores of passages, given by their keys.
        """
        least_C, most_C = (bound_C.astype(np.float64) for bound_C in bounds)
        certain_C = least_C > kth_largest(most_C, depth)
        is_open_C = ~certain_C & (most_C >= kth_largest(least_C, depth))
        open_places = np.flatnonzero(is_open_C)
        least_C[open_places] = most_C[open_places] = score(keys_C[open_places])
        ranking = np.lexsort((numbers_C[open_places], -most_C[open_places]))
        chosen = open_places[ranking[: depth - int(certain_C.sum())]]
        kept = np.sort(np.concatenate([np.flatnonzero(certain_C), chosen]))
        last = float(most_C[chosen[-1]])
        return cls(keys_C[kept], numbers_C[kept], least_C[kept], most_C[kept], last, score)

    def settle(self, places: np.ndarray) -> None:
        """Make the scores of some passages exact, given by their places in the list (int64, ascending)."""
        places = places[self.least_C[places] < self.most_C[places]]
        if len(places):
            self.least_C[places] = self.most_C[places] = self.score(self.keys_C[places])

    def scores_of(self, numbers: np.ndarray) -> list[float | None]:
        """Return the exact scores of passages (int32); None for a passage that is not in the list."""
        places = np.flatnonzero(np.isin(self.numbers_C, numbers))
        self.settle(places)
        known = dict(zip(self.numbers_C[places].tolist(), self.most_C[places].tolist(), strict=True))
        return [known.get(number) for number in numbers.tolist()]


@dataclass(frozen=True)
class BoundedHits:
    """Each query's list of passages, scores within bounds, to be ranked by a weighted sum with those of other lists.

    Attributes:
        passages: what numbers stand for.
        lists: one a query.
        threads: that make scores exact, each those of a query.
    """

    passages: Passages
    lists: Sequence[BoundedList]
    threads: int = 1

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, queries: slice) -> BoundedHits:
        """Return the lists of some queries."""
        return replace(self, lists=self.lists[queries])

    def first(self, k: int) -> Self:
        """Return the lists, as `Hits.first`; they are of k passages."""
        assert all(len(each.numbers_C) == k for each in self.lists), "bounds tell the first k alone"
        return self


class Summand(NamedTuple):
    """A list in a sum, of one query."""

    numbers_C: np.ndarray
    """int32, its passages."""
    values_C: np.ndarray
    """float64, their weighted scores."""
    lacking: float
    """The weighted score of a passage that the list lacks."""


def fuse_exact_topk(bounded: BoundedHits, weight: float, others: Sequence[Sequence[Summand]], k: int) -> Hits:
    """Return each query's `k` passages with the largest sums, as if all dense scores were exact.

    Args:
        bounded: dense lists.
        weight: of dense scores.
        others: for each query, the other lists.
        k: passages kept.
    """

    def of_query(query: int) -> Hits:
        sums_U, numbers_U = _best_sums_within(bounded.lists[query], weight, others[query], k)
        best = TopK(1, k, bounded.passages)
        best.add_for(0, sums_U, numbers_U)
        return best.results()

    return Hits.joined(list(each_of(len(bounded), of_query, bounded.threads)))


def _best_sums_within(
    dense: BoundedList, weight: float, others: Sequence[Summand], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return exact sums of passages with the best k among them, and the passages' numbers."""
    numbers_U, (places_C, *places) = union([dense.numbers_C, *(each.numbers_C for each in others)])
    dense_U = np.full(len(numbers_U), _LACKING)
    dense_U[places_C] = np.arange(len(places_C))
    others_U = [filled(len(numbers_U), own_C, each) for own_C, each in zip(places, others, strict=True)]

    def sums(scores_C: np.ndarray, of_U: np.ndarray) -> np.ndarray:
        scores_U = np.where(dense_U[of_U] == _LACKING, dense.last, scores_C[dense_U[of_U]])
        return reduce(operator.add, (values_U[of_U] for values_U in others_U), weight * scores_U)

    left_U = np.arange(len(numbers_U))
    if len(left_U) > k:
        left_U = left_U[sums(dense.most_C, left_U) >= kth_largest(sums(dense.least_C, left_U), k)]
    dense.settle(np.sort(dense_U[left_U][dense_U[left_U] != _LACKING]))
    return sums(dense.most_C, left_U), numbers_U[left_U]


def union(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the numbers, ascending, that are in any of the lists, and for each list the places of its own in them."""
    joined = np.concatenate(lists)
    order = np.argsort(joined)
    ordered = joined[order]
    is_first = np.ones(len(joined), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.empty(len(joined), np.int64)
    places[order] = np.cumsum(is_first) - 1
    return ordered[is_first], np.split(places, np.cumsum([len(each) for each in lists[:-1]]))


def filled(size: int, places_C: np.ndarray, summand: Summand) -> np.ndarray:
    """Return float64 [size]: the values of a summand in their places, its `lacking` in the others."""
    made = np.full(size, summand.lacking, np.float64)
    made[places_C] = summand.values_C
    return made
