"""Rank correlations against scipy, on whole samples and on every resample of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from diffretriever.evaluation.statistics import kendall, spearman


def sample(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.integers(1, 30, n).astype(float)
    return x, np.clip(np.round(x / 8 + generator.normal(0, 1.5, n)), 0, 4)


@pytest.mark.parametrize("seed", range(4))
def test_coefficients_are_scipys(seed: int) -> None:
    x, y = sample(seed, 150)
    assert spearman(x, y).value == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    assert kendall(x, y).value == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)


def test_without_ties_too() -> None:
    generator = np.random.default_rng(5)
    x, y = generator.random(60), generator.random(60)
    assert spearman(x, y).value == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    assert kendall(x, y).value == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)


def test_known_values() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, x**3).value == pytest.approx(1.0)
    assert kendall(x, -x).value == pytest.approx(-1.0)
    # One pair of six is in the opposite order: tau is (5 - 1) / 6, rho 1 - 6 * 2 / (4 * 15).
    y = np.array([1.0, 2.0, 4.0, 3.0])
    assert kendall(x, y).value == pytest.approx(4 / 6)
    assert spearman(x, y).value == pytest.approx(0.8)


def test_the_intervals_are_those_of_scipys_coefficients_on_the_same_resamples() -> None:
    x, y = sample(9, 80)
    generator = np.random.default_rng(42)
    rhos, taus = [], []
    for _ in range(1000):
        drawn = generator.integers(80, size=80)
        rhos.append(scipy.stats.spearmanr(x[drawn], y[drawn]).statistic)
        taus.append(scipy.stats.kendalltau(x[drawn], y[drawn]).statistic)
    for found, coefficients in ((spearman(x, y), rhos), (kendall(x, y), taus)):
        assert (found.low, found.high) == pytest.approx(tuple(np.percentile(coefficients, [2.5, 97.5])), abs=1e-9)
        assert found.low < found.value < found.high


def test_a_constant_side_has_no_correlation() -> None:
    for coefficient in (spearman, kendall):
        found = coefficient(np.arange(5.0), np.ones(5))
        assert all(map(math.isnan, (found.value, found.low, found.high)))
