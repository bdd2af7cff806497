"""Rank correlations and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diffretriever.evaluation.statistics import kendall, spearman


def sample(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.integers(1, 30, n).astype(float)
    return x, np.clip(np.round(x / 8 + generator.normal(0, 1.5, n)), 0, 4)


def test_known_values() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, x**3).value == pytest.approx(1.0)
    assert kendall(x, -x).value == pytest.approx(-1.0)
    # One pair of six is in the opposite order: tau is (5 - 1) / 6, rho 1 - 6 * 2 / (4 * 15).
    y = np.array([1.0, 2.0, 4.0, 3.0])
    assert kendall(x, y).value == pytest.approx(4 / 6)
    assert spearman(x, y).value == pytest.approx(0.8)


def test_an_interval_lies_around_its_coefficient() -> None:
    for coefficient in (spearman, kendall):
        found = coefficient(*sample(9, 80))
        assert found.low < found.value < found.high


def test_a_constant_side_has_no_correlation() -> None:
    for coefficient in (spearman, kendall):
        found = coefficient(np.arange(5.0), np.ones(5))
        assert all(map(math.isnan, (found.value, found.low, found.high)))
