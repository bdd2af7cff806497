"""The scores that an index is ranked by: the lists each takes, and the hybrid of two (Eq. 4 of arXiv 2605.07210).

Legend: P passages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.scoring.topk import Hits, top_k
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
    if mode != "hybrid":
        return [hits[:top_k] for hits in lists[mode]]
    pairs = zip(lists["dense"], lists["sparse"], strict=True)
    return [hybrid(dict(dense), dict(sparse), top_k) for dense, sparse in pairs]


def hybrid(
    dense: Mapping[str, float], sparse: Mapping[str, float], k: int = 1000, *, depth: int = FUSION_DEPTH
) -> list[tuple[str, float]]:
    """Fuse two lists of one query: Eq. 4 of the paper, arXiv 2605.07210.

    Each list is cut to its `depth` best and scaled to 0..1 by its own minimum and maximum; a passage's
    score is half of each. A passage that a list lacks counts 0 there, which is what the list's last passage
    counts too; so does every passage of a list whose scores are all equal.

    Args:
        dense: score by passage id; may be empty.
        sparse: score by passage id; may be empty.
        k: passages to return.
        depth: passages of each list that take part.

    Returns:
        At most k pairs (passage id, score in 0..1), score descending, then id ascending.

    Raises:
        ValueError: a score is NaN, or k or depth is below 1.
    """
    scaled_dense, scaled_sparse = _min_max(dense, depth), _min_max(sparse, depth)
    ids = list(scaled_dense | scaled_sparse)
    scores_P = np.array([0.5 * scaled_dense.get(i, 0.0) + 0.5 * scaled_sparse.get(i, 0.0) for i in ids])
    return top_k(scores_P, ids, k)


def _min_max(scores: Mapping[str, float], depth: int) -> dict[str, float]:
    best = top_k(np.array(list(scores.values()), dtype=np.float64), list(scores), depth)
    if not best:
        return {}
    highest, lowest = best[0][1], best[-1][1]
    spread = max(highest - lowest, _NARROWEST_SPREAD)
    return {passage: (score - lowest) / spread for passage, score in best}
