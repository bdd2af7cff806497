"""The scores that an index is ranked by: the lists each takes, and how several are fused (Eq. 4 of arXiv 2605.07210).

Legend: Q queries, F passages found for all queries together, C those of one query in any of its lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from diffretriever.schemas.fusion import Fusion
from diffretriever.schemas.mode import EncodedList, ListName, Mode, lists_of, weights_of
from diffretriever.scoring.hits import Hits, TopK

FUSION_DEPTH = 1000
"""Passages of each list that take part in a fused score."""

RANK_CONSTANT = 60
"""What is added to ranks before their reciprocals are taken (Cormack et al. 2009)."""

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


def ranked(mode: Mode, lists: Mapping[ListName, Hits], k: int, depth: int = FUSION_DEPTH) -> Hits:
    """Return each query's best `k` passages by one mode: of one list, or of the sum of several.

    Without weights the sum is the equal one of min-max scores (Eq. 4), with weights that of the scores as they are. A
    passage that a list of `depth` passages lacks then has its last score, one that a shorter list lacks 0: such a list
    has all passages with a word of the query.

    Args:
        mode: the score.
        lists: at least those of `lists_for`, each of `depth_for` passages a query if there are so many.
        k: passages kept.
        depth: passages of each list that take part in a sum.
    """
    own, weights = [lists[name] for name in lists_of(mode)], weights_of(mode)
    if len(own) == 1:
        return own[0].first(k)
    return fused(own, k, depth=depth) if weights is None else _weighted(own, weights, k, depth)


def _weighted(lists: Sequence[Hits], weights: Sequence[float], k: int, depth: int) -> Hits:
    cut = [hits.first(depth) for hits in lists]
    floors = [_floors(hits, depth) for hits in cut]
    values = [
        weight * (hits.scores_F - np.repeat(floor_Q, hits.counts_Q))
        for weight, hits, floor_Q in zip(weights, cut, floors, strict=True)
    ]
    best = _best_sums(cut, values, k)
    everywhere_Q = np.sum([weight * floor_Q for weight, floor_Q in zip(weights, floors, strict=True)], axis=0)
    return replace(best, scores_F=best.scores_F + np.repeat(everywhere_Q, best.counts_Q))


def _floors(hits: Hits, depth: int) -> np.ndarray:
    """Return float64 [Q]: the scores of passages that the lists lack."""
    floor_Q = np.zeros(len(hits))
    is_full_Q = hits.counts_Q == depth
    floor_Q[is_full_Q] = hits.scores_F[hits.offsets[1:][is_full_Q] - 1]
    return floor_Q


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
    return _best_sums(cut, values, k)


def _best_sums(lists: Sequence[Hits], values: Sequence[np.ndarray], k: int) -> Hits:
    """Return each query's `k` passages with the largest sums of what they count in the lists, `values` float64 [F]."""
    first = lists[0]
    best = TopK(len(first), k, first.passages)
    for query in range(len(first)):
        own = [slice(*hits.offsets[query : query + 2]) for hits in lists]
        numbers_C = np.concatenate([hits.numbers_F[each] for hits, each in zip(lists, own, strict=True)])
        if len(numbers_C):
            values_C = np.concatenate([values_F[each] for values_F, each in zip(values, own, strict=True)])
            best.add_for(query, *_sums(numbers_C, values_C))
    return best.results()


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


def _sums(numbers_C: np.ndarray, values_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the values of each passage, added in their order, and the passages' numbers."""
    order = np.argsort(numbers_C)
    ordered_C = numbers_C[order]
    is_first_C = np.concatenate([[True], ordered_C[1:] != ordered_C[:-1]])
    places_C = np.empty(len(order), np.int64)
    places_C[order] = np.cumsum(is_first_C) - 1
    return np.bincount(places_C, values_C), ordered_C[is_first_C]
