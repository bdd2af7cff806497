"""The scores that an index is ranked by: the lists each takes, and the hybrid of two (Eq. 4 of arXiv 2605.07210).

Legend: Q queries, F passages found for all queries together, C those of one query in either list, D and S those in the
dense and in the sparse lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.scoring.hits import Hits
from diffretriever.scoring.topk import TopK
from schemas.retriever import Mode

ListName: TypeAlias = Literal["dense", "sparse"]
"""A list of passages that a search of an index gives."""

FUSION_DEPTH = 1000
"""Passages of each list that take part in the hybrid score."""

_LISTS: dict[Mode, tuple[ListName, ...]] = {"dense": ("dense",), "sparse": ("sparse",), "hybrid": ("dense", "sparse")}

_NARROWEST_SPREAD = 1e-9
"""Lists whose scores differ by less count as one score (all 0); the authors' code has the same bound."""


def lists_for(modes: Iterable[Mode]) -> tuple[ListName, ...]:
    """Return the lists that ranking by these modes takes, none twice."""
    return tuple(dict.fromkeys(name for mode in modes for name in _LISTS[mode]))


def depth_for(modes: Collection[Mode], top_k: int) -> int:
    """Return how many passages of each list it takes to find the best `top_k` by every one of these modes."""
    return max(top_k, FUSION_DEPTH) if "hybrid" in modes else top_k


def ranked(mode: Mode, lists: Mapping[ListName, Hits], top_k: int) -> Hits:
    """Return each query's best `top_k` passages by one mode, from the lists that it takes.

    Args:
        mode: the score.
        lists: at least those of `lists_for`, each of `depth_for` passages a query if there are so many.
        top_k: passages kept.
    """
    return hybrid(lists["dense"], lists["sparse"], top_k) if mode == "hybrid" else lists[mode].first(top_k)


def hybrid(dense: Hits, sparse: Hits, k: int = 1000, *, depth: int = FUSION_DEPTH) -> Hits:
    """Fuse two lists of each query: Eq. 4 of the paper, arXiv 2605.07210.

    Each list is cut to its `depth` best and scaled to 0..1 by its own minimum and maximum; a passage's
    score is half of each. A passage that a list lacks counts 0 there, which is what the list's last passage
    counts too; so does every passage of a list whose scores are all equal.

    Args:
        dense: of Q queries, best first.
        sparse: of the same queries and passages, best first.
        k: passages to return.
        depth: passages of each list that take part.

    Returns:
        At most k passages a query with scores in 0..1, score descending, then id ascending.

    Raises:
        ValueError: a score is NaN or infinite, or k or depth is below 1.
    """
    assert dense.passages is sparse.passages, "numbers mean the same in both lists"
    if depth < 1:
        raise ValueError(f"depth is {depth}: let at least one passage of each list take part")
    best = TopK(len(dense), k, dense.passages)
    dense, sparse = dense.first(depth), sparse.first(depth)
    halves_D, halves_S = 0.5 * _min_max(dense), 0.5 * _min_max(sparse)
    for query in range(len(dense)):
        own_D, own_S = slice(*dense.offsets[query : query + 2]), slice(*sparse.offsets[query : query + 2])
        numbers_C = np.concatenate([dense.numbers_F[own_D], sparse.numbers_F[own_S]])
        if len(numbers_C):
            best.add_for(query, *_sums(numbers_C, np.concatenate([halves_D[own_D], halves_S[own_S]])))
    return best.results()


def _min_max(hits: Hits) -> np.ndarray:
    """Return float64 [F]: each score less the query's lowest, by the distance to its highest."""
    counts_Q = np.diff(hits.offsets)
    filled_Q = counts_Q > 0
    highest_Q, lowest_Q = hits.scores_F[hits.offsets[:-1][filled_Q]], hits.scores_F[hits.offsets[1:][filled_Q] - 1]
    # Scores that are not finite give NaN, which is refused when passages are ranked.
    with np.errstate(invalid="ignore", over="ignore"):
        spreads_Q = np.maximum(highest_Q - lowest_Q, _NARROWEST_SPREAD)
        above_F = hits.scores_F - np.repeat(lowest_Q, counts_Q[filled_Q])
        scaled_F: np.ndarray = above_F / np.repeat(spreads_Q, counts_Q[filled_Q])
    return scaled_F


def _sums(numbers_C: np.ndarray, values_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the values of each passage, once or twice in `numbers_C`, and the passages' numbers."""
    order = np.argsort(numbers_C)
    ordered_C = numbers_C[order]
    firsts = np.flatnonzero(np.concatenate([[True], ordered_C[1:] != ordered_C[:-1]]))
    return np.add.reduceat(values_C[order], firsts), ordered_C[firsts]
