"""Synthetic outcomes whose truth is known."""

from __future__ import annotations

import numpy as np

from diffretriever.studies.budgets.sweep_files import Outcomes

BUDGETS = (1, 2, 4, 8, 16)


def outcomes(values_ABQ: np.ndarray) -> Outcomes:
    n_a, n_b, n = values_ABQ.shape
    return Outcomes(tuple(f"q{i}" for i in range(n)), BUDGETS[:n_a], BUDGETS[:n_b], values_ABQ)


def noise(n: int, *, seed: int = 0, spread: float = 0.1) -> np.ndarray:
    """Queries of differing difficulty, and every cell by luck alone: nothing to find."""
    generator = np.random.default_rng(seed)
    return generator.random(n) + generator.normal(0, spread, (5, 5, n))


def preferences(n: int, *, seed: int = 0) -> np.ndarray:
    """A preferred place on an axis of 5 for each query, int64 [n]."""
    return np.random.default_rng(1000 + seed).integers(5, size=n)
