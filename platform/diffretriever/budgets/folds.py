"""Dividing queries for cross-validation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

FOLDS = 5
_SEED = 42


def folds(n_queries: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (training, test) as int64 positions, five times; every query is in one test part.

    The parts are drawn with a fixed seed, so equal sets of queries are always divided alike. A single query is its own
    training part: there is nothing to divide.
    """
    if n_queries == 1:
        yield np.zeros(1, np.int64), np.zeros(1, np.int64)
        return
    shuffled_Q = np.random.default_rng(_SEED).permutation(n_queries)
    parts = np.array_split(shuffled_Q, min(FOLDS, n_queries))
    for number, test in enumerate(parts):
        yield np.sort(np.concatenate(parts[:number] + parts[number + 1 :])), np.sort(test)
