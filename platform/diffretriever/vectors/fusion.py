"""Score fusion: the result lists that a scoring mode needs, and their sum (Eq. 4 of arXiv 2605.07210).

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
"""Passages of each result list that are fused."""

RANK_CONSTANT = 60
"""The constant k of reciprocal rank fusion (Cormack et al. 2009)."""

_NARROWEST_SPREAD = 1e-9
"""Smallest divisor of scores, as in the authors' code; equal scores become 0."""


def lists_for(modes: Iterable[Mode]) -> tuple[ListName, ...]:
    """Return the result lists that these modes need, without duplicates."""
    return tuple(dict.fromkeys([name for mode in modes for name in lists_of(mode)]))


def encoded_lists_for(modes: Iterable[Mode]) -> tuple[EncodedList, ...]:
    """Return the result lists of these modes that need encoded queries."""
    return tuple([name for name in lists_for(modes) if name != "bm25"])


def depth_for(modes: Iterable[Mode], k: int, depth: int = FUSION_DEPTH) -> int:
    """Return the depth of result lists for the best `k` passages in every mode; fusion needs at least `depth`."""
    return max([k, *[depth for mode in modes if len(lists_of(mode)) > 1]])


class Summand(NamedTuple):
    """A result list to be fused."""

    hits: Hits
    """Its passages."""
    values_F: np.ndarray
    """float64, their weighted scores."""
    missing_Q: np.ndarray
    """float64, the weighted score of a passage that is not in the list."""


def ranked(mode: Mode, lists: Mapping[ListName, Hits], k: int, depth: int = FUSION_DEPTH) -> Hits:
    """Return each query's best `k` passages by one mode.

    Without weights, fusion is min-max (Eq. 4). With weights, it is a sum of scores. Sparse and BM25 scores are first
    divided by the query's highest, because they grow with the length of the query. A passage missing from a full list
    of `depth` passages gets the list's last score. A shorter list is complete: a missing passage gets 0.

    `lists` contains the lists of `lists_for`, up to `depth_for` passages per query.
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
    """Fuse result lists and return up to `k` passages per query, score descending, then id ascending.

    The default is the paper's hybrid (Eq. 4 of arXiv 2605.07210): the `depth` best passages of each list are scaled to
    0..1. Missing passages count 0, and so do all passages of a list with equal scores.

    Args:
        lists: at least one result list of the same queries and passages, best first.
        k: passages per query.
        by: fusion method; see `Fusion`.
        weights: weight of each list, normalised to sum 1; at least 0 and not all 0. Default: equal. Passages found only
            by lists of weight 0 are returned too.
        depth: passages of each list to fuse.

    Raises:
        ValueError: a score is NaN or infinite (except in reciprocal rank fusion), or k or depth is below 1.
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
    first = summands[0].hits
    best = TopK(len(first), k, first.passages)
    for query in range(len(first)):
        slices = [slice(*summand.hits.offsets[query : query + 2]) for summand in summands]
        numbers = [summand.hits.numbers_F[rows] for summand, rows in zip(summands, slices, strict=True)]
        numbers_U, positions = np.unique(np.concatenate(numbers), return_inverse=True)
        parts, start = [], 0
        for summand, rows, numbers_C in zip(summands, slices, numbers, strict=True):
            values_U = np.full(len(numbers_U), summand.missing_Q[query])
            values_U[positions[start : start + len(numbers_C)]] = summand.values_F[rows]
            start += len(numbers_C)
            parts.append(values_U)
        best.add_for(query, reduce(np.add, parts), numbers_U)
    return best.results()


def _counted(hits: Hits, by: Fusion) -> np.ndarray:
    """Return float64 [F], the scores scaled for fusion."""
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
