"""The search that postings are held against: the platform's own product, every score, sorted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from diffretriever.scoring.sparse import impact_matrix, sparse_scores
from diffretriever.search.sparse.segment import Impacts
from diffretriever.search.sparse.segment_search import Found

Text: TypeAlias = dict[int, float]
"""Weight by id."""


def impacts(texts: Sequence[Text]) -> Impacts:
    pairs = [pair for text in texts for pair in sorted(text.items())]
    ids = np.array([i for i, _ in pairs], dtype=np.int32)
    weights = np.array([w for _, w in pairs], dtype=np.float32)
    return ids, weights, np.cumsum([0, *map(len, texts)], dtype=np.int64)


def slices(passages: Impacts, sizes: Sequence[int]) -> Iterator[Impacts]:
    """Cut passages into groups of these sizes."""
    ids, weights, offsets = passages
    first = 0
    for size in sizes:
        own = offsets[first : first + size + 1]
        yield ids[own[0] : own[-1]], weights[own[0] : own[-1]], own - own[0]
        first += size


def all_scores(query: Impacts, passages: Impacts, vocab_size: int) -> np.ndarray:
    """Return float32, the score of every passage for the one query."""
    return sparse_scores(impact_matrix(*query, vocab_size), impact_matrix(*passages, vocab_size)).toarray()[0]


def expected(scores: np.ndarray, k: int, deleted: np.ndarray | None = None) -> tuple[list[int], list[float]]:
    """Return the k best passages and their scores, by score and number."""
    live = scores > 0 if deleted is None else (scores > 0) & ~deleted
    ranked = np.lexsort((np.arange(len(scores)), -scores))
    ranked = ranked[live[ranked]][:k]
    return ranked.tolist(), scores[ranked].tolist()


def numbered(sizes: Sequence[int], deleted: np.ndarray | None = None) -> list[np.ndarray]:
    """Return the numbers of the passages of segments of these sizes, in order; -1 for deleted ones."""
    numbers = np.arange(sum(sizes), dtype=np.int32)
    if deleted is not None:
        numbers[deleted] = -1
    return np.split(numbers, np.cumsum(sizes)[:-1]) if len(sizes) else []


def found(result: Found) -> tuple[list[int], list[float]]:
    """Return what a search found as lists."""
    return result.numbers.tolist(), result.scores.tolist()
