"""The scores that an index is ranked by: the lists each takes, and how several are fused (Eq. 4 of arXiv 2605.07210).

Legend: Q queries, F passages found for all queries together, C those of one query in one list, U those in any list.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from diffretriever.schemas.fusion import Fusion
from diffretriever.schemas.mode import EncodedList, ListName, Mode, lists_of, weights_of
from diffretriever.scoring.hits import BoundedHits, BoundedList, Hits, TopK, each_of, kth_largest

FUSION_DEPTH = 1000
"""Passages of each list that take part in a fused score."""

RANK_CONSTANT = 60
"""What is added to ranks before their reciprocals are taken (Cormack et al. 2009)."""

_FEW = 0.1
"""Of the passages of a list."""

_LACKING = -1
"""In the place of a passage's place in a list that it is not in."""

_NARROWEST_SPREAD = 1e-9
"""Lists whose scores differ by less count as one score (all 0); the authors' code has the same bound."""


def lists_for(modes: Iterable[Mode]) -> tuple[ListName, ...]:
    """Return the lists that ranking by these modes takes, none twice."""
    return tuple(dict.fromkeys(name for mode in modes for name in lists_of(mode)))


def encoded_lists_for(modes: Iterable[Mode]) -> tuple[EncodedList, ...]:
    """Return those of the lists that take encoded queries."""
    return tuple(name for name in lists_for(modes) if name != "bm25")


def depth_for(modes: Iterable[Mode], k: int, depth: int = FUSION_DEPTH) -> int:
    """Return how many passages of each list it takes to find the best `k` by every one of these modes.

    Sums are of `depth` passages of each list.
    """
    return max(k, depth) if any(len(lists_of(mode)) > 1 for mode in modes) else k


def takes_bounds(modes: Iterable[Mode], k: int, depth: int = FUSION_DEPTH) -> bool:
    """Return whether dense scores within bounds are enough to find the best `k`, and few of them need be exact then.

    That is so for sums with weights. Min-max scores go by those of the list's first and last passage: these take about
    as long as all.
    """
    return k <= _FEW * depth and all(weights_of(mode) is not None for mode in modes if "dense" in lists_of(mode))


def ranked(mode: Mode, lists: Mapping[ListName, Hits | BoundedHits], k: int, depth: int = FUSION_DEPTH) -> Hits:
    """Return each query's best `k` passages by one mode: of one list, or of the sum of several.

    Without weights the sum is the equal one of min-max scores (Eq. 4). With weights it is the sum of dense scores as
    they are, and of sparse and BM25 scores divided by the query's highest: these grow with the length of the query,
    which must not decide how much they count beside a cosine. A passage that a list of `depth` passages lacks then has
    its last score. A shorter list has all passages with a word of the query, and others have 0 there.

    Args:
        mode: the score.
        lists: at least those of `lists_for`, each of `depth_for` passages a query if there are so many. The first of a
            sum with weights may be within bounds, of `depth` passages.
        k: passages kept.
        depth: passages of each list that take part in a sum.
    """
    weights = weights_of(mode)
    first, *rest = (
        lists[name] if weights is None or name == "dense" else _by_highest(lists[name]) for name in lists_of(mode)
    )
    others = [hits for hits in rest if isinstance(hits, Hits)]
    assert len(others) == len(rest), "the first list alone can be within bounds"
    if isinstance(first, BoundedHits):
        assert weights is not None, "bounds are enough for sums with weights"
        return _ranked_within(first, [hits.first(depth) for hits in others], weights, k)
    if not others:
        return first.first(k)
    lists_of_sum = [first, *others]
    return fused(lists_of_sum, k, depth=depth) if weights is None else _weighted(lists_of_sum, weights, k, depth)


def _by_highest(hits: Hits | BoundedHits) -> Hits:
    """Return hits whose scores are divided by the highest of their query; all 0 where that is not above 0."""
    assert isinstance(hits, Hits), "dense scores alone can be within bounds"
    highest_Q = np.zeros(len(hits))
    filled_Q = hits.counts_Q > 0
    highest_Q[filled_Q] = hits.scores_F[hits.offsets[:-1][filled_Q]]
    factors_Q = np.divide(1.0, highest_Q, out=np.zeros(len(hits)), where=highest_Q > 0)
    return replace(hits, scores_F=hits.scores_F * np.repeat(factors_Q, hits.counts_Q))


def _weighted(lists: Sequence[Hits], weights: Sequence[float], k: int, depth: int) -> Hits:
    cut = [hits.first(depth) for hits in lists]
    values = [weight * hits.scores_F for weight, hits in zip(weights, cut, strict=True)]
    lacking = [weight * _floors(hits, depth) for weight, hits in zip(weights, cut, strict=True)]
    return _best_sums(cut, values, lacking, k)


def _floors(hits: Hits, depth: int) -> np.ndarray:
    """Return float64 [Q]: the scores of passages that the lists lack."""
    floor_Q = np.zeros(len(hits))
    is_full_Q = hits.counts_Q == depth
    floor_Q[is_full_Q] = hits.scores_F[hits.offsets[1:][is_full_Q] - 1]
    return floor_Q


def _ranked_within(bounded: BoundedHits, others: Sequence[Hits], weights: Sequence[float], k: int) -> Hits:
    """Return what `_weighted` does, where scores of the first list are within bounds."""

    def of_query(query: int) -> Hits:
        (own,), rest = bounded.lists[query : query + 1], [hits[query : query + 1] for hits in others]
        found = _SumWithin(own, rest, weights).best(k)
        if found is None:
            return _weighted([bounded[query : query + 1].exact(), *rest], weights, k, own.depth)
        best = TopK(1, k, bounded.passages)
        best.add_for(0, *found)
        return best.results()

    return Hits.joined(list(each_of(len(bounded), of_query, bounded.threads)))


class _SumWithin:
    """One query's sums, of a list within bounds and of others, none longer than it: of U passages, fewer and fewer."""

    def __init__(self, bounded: BoundedList, others: Sequence[Hits], weights: Sequence[float]) -> None:
        """`weights` are of all lists, the first one's within bounds."""
        self._bounded, self._weight = bounded, weights[0]
        self._numbers_U, (places_C, *places) = _union([bounded.numbers_C, *(hits.numbers_F for hits in others)])
        self._own_U = np.full(len(self._numbers_U), _LACKING)
        self._own_U[places_C] = np.arange(len(places_C))
        weighted = list(zip(weights[1:], others, strict=True))
        values = [weight * hits.scores_F for weight, hits in weighted]
        self._lacking = [weight * float(_floors(hits, bounded.depth)[0]) for weight, hits in weighted]
        columns = zip(places, values, self._lacking, strict=True)
        self._others = [_filled(len(self._numbers_U), *each) for each in columns]

    def best(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the sums and the numbers of passages with the best k among them.

        None where passages that are in none of the lists come into question, which bounds do not tell from others.
        """
        if len(self._numbers_U) <= k:
            return None
        self._keep_contenders(k)
        # What the most promising score rules out most of the others.
        _, most_U = self._bounds()
        self._settle(most_U >= kth_largest(most_U, min(2 * k, len(most_U))))
        self._keep_contenders(k)
        self._settle(np.ones(len(self._own_U), bool))
        least_U, most_U = self._bounds()
        if (least_U < most_U).any():
            # Some count what the last passage of the list does.
            self._bounded.settle_last()
            self._keep_contenders(k)
            _, most_U = self._bounds()
        _, last = self._bounded.last()
        of_none = reduce(operator.add, self._lacking, self._weight * last)
        return (most_U, self._numbers_U) if kth_largest(most_U, k) > of_none else None

    def _keep_contenders(self, k: int) -> None:
        """Leave out what cannot be among the best k, at least so many."""
        least_U, most_U = self._bounds()
        kept_U = most_U >= kth_largest(least_U, k)
        self._numbers_U, self._own_U = self._numbers_U[kept_U], self._own_U[kept_U]
        self._others = [values_U[kept_U] for values_U in self._others]

    def _settle(self, wanted_U: np.ndarray) -> None:
        wanted_C = np.zeros(len(self._bounded.numbers_C), bool)
        wanted_C[self._own_U[wanted_U & (self._own_U != _LACKING)]] = True
        self._bounded.settle(wanted_C)

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return float64 [U]: the least and the most that each sum can be."""
        least, most = self._bounded.last()
        return self._sums(self._bounded.least_C, least), self._sums(self._bounded.most_C, most)

    def _sums(self, scores_C: np.ndarray, last: float) -> np.ndarray:
        # What is not in the list counts as its last passage does.
        scores_U = np.where(self._own_U == _LACKING, last, np.maximum(scores_C[self._own_U], last))
        return reduce(np.add, self._others, self._weight * scores_U)


def fused(
    lists: Sequence[Hits],
    k: int = 1000,
    *,
    by: Fusion = "min-max",
    weights: Sequence[float] | None = None,
    depth: int = FUSION_DEPTH,
) -> Hits:
    """Rank each query's passages by the weighted sum of what they count in several lists; see `Fusion`.

    By default the hybrid of the paper (Eq. 4 of arXiv 2605.07210): each list is cut to its `depth` best and scaled to
    0..1 by its own minimum and maximum. A passage that a list lacks counts 0 there, which is what the list's last
    passage counts too; so does every passage of a list whose scores are all equal.

    Args:
        lists: at least one, of the same queries and passages, best first.
        k: passages to return.
        by: what a passage counts in a list, before weights.
        weights: of the lists, at least 0 and not all 0, taken by their share of the sum; None: equal.
        depth: passages of each list that take part.

    Returns:
        At most k passages a query, score descending, then id ascending. One that only lists of weight 0 have is among
        them.

    Raises:
        ValueError: a score is NaN or infinite (reciprocal ranks do not look at scores), or k or depth is below 1.
    """
    first = lists[0]
    assert all(hits.passages is first.passages for hits in lists), "numbers mean the same in all lists"
    if depth < 1:
        raise ValueError(f"depth is {depth}: let at least one passage of each list take part")
    shares = np.array([1.0] * len(lists) if weights is None else weights)
    cut = [hits.first(depth) for hits in lists]
    values = [share * _COUNTED[by](hits) for share, hits in zip(shares / shares.sum(), cut, strict=True)]
    return _best_sums(cut, values, [np.zeros(len(first))] * len(lists), k)


def _best_sums(lists: Sequence[Hits], values: Sequence[np.ndarray], lacking: Sequence[np.ndarray], k: int) -> Hits:
    """Return each query's `k` passages with the largest sums of what they count in the lists.

    Args:
        lists: of the same queries.
        values: float64 [F] each, what passages count.
        lacking: float64 [Q] each, what those count that the list lacks.
        k: passages kept.
    """
    first = lists[0]
    best = TopK(len(first), k, first.passages)
    for query in range(len(first)):
        own = [slice(*hits.offsets[query : query + 2]) for hits in lists]
        numbers_U, places = _union([hits.numbers_F[each] for hits, each in zip(lists, own, strict=True)])
        columns = zip(places, values, own, lacking, strict=True)
        parts = [
            _filled(len(numbers_U), places_C, values_F[each], lacking_Q[query])
            for places_C, values_F, each, lacking_Q in columns
        ]
        best.add_for(query, reduce(np.add, parts), numbers_U)
    return best.results()


def _union(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the numbers, ascending, that are in any of the lists, and for each list the places of its own in them."""
    joined = np.concatenate(lists)
    order = np.argsort(joined)
    ordered = joined[order]
    is_first = np.ones(len(joined), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.empty(len(joined), np.int64)
    places[order] = np.cumsum(is_first) - 1
    return ordered[is_first], np.split(places, np.cumsum([len(each) for each in lists[:-1]]))


def _filled(size: int, places_C: np.ndarray, values_C: np.ndarray, lacking: float) -> np.ndarray:
    """Return float64 [size]: the values in their places, `lacking` in the others."""
    filled = np.full(size, lacking, np.float64)
    filled[places_C] = values_C
    return filled


def _min_max(hits: Hits) -> np.ndarray:
    """Return float64 [F]: each score less the query's lowest, by the distance to its highest."""
    return _above_lowest(hits, lambda scores_F, starts, ends: scores_F[starts] - scores_F[ends - 1])


def _z_score(hits: Hits) -> np.ndarray:
    """Return float64 [F]: each score less the query's lowest, by the standard deviation of the query's scores."""
    return _above_lowest(hits, _deviations)


def _linear(hits: Hits) -> np.ndarray:
    """Return float64 [F]: each score less the query's lowest."""
    return _above_lowest(hits, lambda _scores_F, starts, _ends: np.ones(len(starts)))


def _above_lowest(hits: Hits, spreads_of: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    filled_Q = hits.counts_Q > 0
    starts, ends, counts = hits.offsets[:-1][filled_Q], hits.offsets[1:][filled_Q], hits.counts_Q[filled_Q]
    # Scores that are not finite give NaN, which is refused when passages are ranked.
    with np.errstate(invalid="ignore", over="ignore"):
        spreads = np.maximum(spreads_of(hits.scores_F, starts, ends), _NARROWEST_SPREAD)
        above_F = hits.scores_F - np.repeat(hits.scores_F[ends - 1], counts)
        scaled_F: np.ndarray = above_F / np.repeat(spreads, counts)
    return scaled_F


def _deviations(scores_F: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    if not len(starts):
        return np.empty(0)
    counts = ends - starts
    means = np.add.reduceat(scores_F, starts) / counts
    squares_F = (scores_F - np.repeat(means, counts)) ** 2
    deviations: np.ndarray = np.sqrt(np.add.reduceat(squares_F, starts) / counts)
    return deviations


def _reciprocal_rank(hits: Hits) -> np.ndarray:
    """Return float64 [F]: 1 / (60 + rank), ranks from 1."""
    ranks_F = np.arange(1, len(hits.numbers_F) + 1) - np.repeat(hits.offsets[:-1], hits.counts_Q)
    return 1.0 / (RANK_CONSTANT + ranks_F)


_COUNTED: dict[Fusion, Callable[[Hits], np.ndarray]] = {
    "min-max": _min_max,
    "z-score": _z_score,
    "reciprocal-rank": _reciprocal_rank,
    "linear": _linear,
}
