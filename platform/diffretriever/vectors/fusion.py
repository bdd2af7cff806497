"""The scores that an index is ranked by: the lists each takes, and how several are fused (Eq. 4 of arXiv 2605.07210).

Legend: Q queries, F passages found for all queries together, C those of one query in one list, U those in any list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from diffretriever.schemas.fusion import Fusion
from diffretriever.schemas.mode import EncodedList, ListName, Mode, lists_of, weights_of
from diffretriever.vectors.hits import Hits, TopK

FUSION_DEPTH = 1000
"""Passages of each list that take part in a fused score."""

RANK_CONSTANT = 60
"""What is added to ranks before their reciprocals are taken (Cormack et al. 2009)."""

_NARROWEST_SPREAD = 1e-9
"""Lists whose scores differ by less count as one score (all 0); the authors' code has the same bound."""


def lists_for(modes: Iterable[Mode]) -> tuple[ListName, ...]:
    """Return the lists that ranking by these modes takes, none twice."""
    return tuple(dict.fromkeys([name for mode in modes for name in lists_of(mode)]))


def encoded_lists_for(modes: Iterable[Mode]) -> tuple[EncodedList, ...]:
    """Return those of the lists that take encoded queries."""
    return tuple([name for name in lists_for(modes) if name != "bm25"])


def depth_for(modes: Iterable[Mode], k: int, depth: int = FUSION_DEPTH) -> int:
    """Return how many passages of each list it takes to find the best `k` by every mode; sums take `depth` of each."""
    return max([k, *[depth for mode in modes if len(lists_of(mode)) > 1]])


class Summand(NamedTuple):
    """A list in a sum."""

    hits: Hits
    """The passages that take part."""
    values_F: np.ndarray
    """float64, their weighted scores."""
    missing_Q: np.ndarray
    """float64, the weighted score of a passage that is not in the list."""


def ranked(mode: Mode, lists: Mapping[ListName, Hits], k: int, depth: int = FUSION_DEPTH) -> Hits:
    """Return each query's best `k` passages by one mode: of one list, or of the sum of several.

    Without weights the sum is the equal one of min-max scores (Eq. 4). With weights it is the sum of dense scores as
    they are, and of sparse and BM25 scores divided by the query's highest: these grow with the length of the query,
    which must not decide how much they count beside a cosine. A passage that a list of `depth` passages lacks then has
    its last score. A shorter list has all passages with a word of the query, and others have 0 there.

    `lists` are at least those of `lists_for`, each of `depth_for` passages a query if there are so many.
    """
    names, weights = lists_of(mode), weights_of(mode)
    if len(names) == 1:
        return lists[names[0]].first(k)
    if weights is None:
        return fused([lists[name] for name in names], k, depth=depth)
    summands = []
    for name, weight in zip(names, weights, strict=True):
        hits = lists[name].first(depth)
        counts_Q, factors_Q, last_Q = np.diff(hits.offsets), np.ones(len(hits)), np.zeros(len(hits))
        if name != "dense":
            highest_Q = np.zeros(len(hits))
            highest_Q[counts_Q > 0] = hits.scores_F[hits.offsets[:-1][counts_Q > 0]]
            factors_Q = np.divide(1.0, highest_Q, out=np.zeros(len(hits)), where=highest_Q > 0)
        scores_F = hits.scores_F * np.repeat(factors_Q, counts_Q)
        last_Q[counts_Q == depth] = scores_F[hits.offsets[1:][counts_Q == depth] - 1]
        summands.append(Summand(hits, weight * scores_F, weight * last_Q))
    return _best_sums(summands, k)


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
    summands = [
        Summand(hits, share * _counted(hits, by), np.zeros(len(hits)))
        for share, hits in zip(shares / shares.sum(), cut, strict=True)
    ]
    return _best_sums(summands, k)


def _best_sums(summands: Sequence[Summand], k: int) -> Hits:
    """Return each query's `k` passages with the largest sums."""
    first = summands[0].hits
    best = TopK(len(first), k, first.passages)
    for query in range(len(first)):
        own = [slice(*each.hits.offsets[query : query + 2]) for each in summands]
        numbers = [each.hits.numbers_F[rows] for each, rows in zip(summands, own, strict=True)]
        numbers_U, places = np.unique(np.concatenate(numbers), return_inverse=True)
        parts, start = [], 0
        for each, rows, numbers_C in zip(summands, own, numbers, strict=True):
            values_U = np.full(len(numbers_U), each.missing_Q[query])
            values_U[places[start : start + len(numbers_C)]] = each.values_F[rows]
            start += len(numbers_C)
            parts.append(values_U)
        best.add_for(query, reduce(np.add, parts), numbers_U)
    return best.results()


def _counted(hits: Hits, by: Fusion) -> np.ndarray:
    """Return float64 [F]: each score as it counts in a sum; see `Fusion`."""
    if by == "reciprocal-rank":
        ranks_F = np.arange(1, len(hits.numbers_F) + 1) - np.repeat(hits.offsets[:-1], hits.counts_Q)
        return 1.0 / (RANK_CONSTANT + ranks_F)
    scores_F, filled_Q = hits.scores_F, hits.counts_Q > 0
    if not filled_Q.any():
        return np.empty(0)
    starts, ends, counts = hits.offsets[:-1][filled_Q], hits.offsets[1:][filled_Q], hits.counts_Q[filled_Q]
    # Scores that are not finite give NaN, which is rejected when passages are ranked.
    with np.errstate(invalid="ignore", over="ignore"):
        if by == "min-max":
            spreads = scores_F[starts] - scores_F[ends - 1]
        elif by == "z-score":
            means = np.add.reduceat(scores_F, starts) / counts
            squares_F = (scores_F - np.repeat(means, counts)) ** 2
            spreads = np.sqrt(np.add.reduceat(squares_F, starts) / counts)
        else:
            spreads = np.ones(len(starts))
        above_F = scores_F - np.repeat(scores_F[ends - 1], counts)
        scaled_F: np.ndarray = above_F / np.repeat(np.maximum(spreads, _NARROWEST_SPREAD), counts)
    return scaled_F
