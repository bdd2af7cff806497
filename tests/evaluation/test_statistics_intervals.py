"""Bootstrap intervals: the same resamples as a plain loop, and what they should cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diffretriever.evaluation.statistics import bootstrap_average, bootstrap_interval, bootstrap_statistic


@pytest.mark.parametrize("queries", [1, 57, 300, 3000])
def test_the_mean_of_a_plain_loop(queries: int) -> None:
    sample = np.random.default_rng(3).random(queries)
    generator = np.random.default_rng(42)
    means = [sample[generator.integers(queries, size=queries)].mean() for _ in range(1000)]
    assert bootstrap_interval(sample.tolist()) == tuple(np.percentile(means, [2.5, 97.5]).tolist())


def test_paired_samples_are_drawn_together() -> None:
    ours = np.random.default_rng(0).random(40)
    low, high = bootstrap_statistic(lambda a, b: float((a - b).mean()), ours + 0.25, ours)
    assert (low, high) == pytest.approx((0.25, 0.25))


def test_a_ratio_leaves_out_resamples_without_a_denominator() -> None:
    ours, theirs = np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.0, 0.0])

    def ratio(a: np.ndarray, b: np.ndarray) -> float:
        return float(a.sum() / b.sum()) if b.any() else math.nan

    assert bootstrap_statistic(ratio, ours, theirs) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap_statistic(lambda _: math.nan, ours)))


def test_the_interval_of_a_normal_mean_is_that_of_the_t_distribution() -> None:
    sample = np.random.default_rng(1).normal(2.0, 1.0, 400)
    low, high = bootstrap_interval(sample)
    half = 1.966 * sample.std(ddof=1) / math.sqrt(400)
    assert (low, high) == pytest.approx((sample.mean() - half, sample.mean() + half), abs=0.012)


def test_an_average_over_sets_weighs_each_alike_and_resamples_each_by_itself() -> None:
    generator = np.random.default_rng(4)
    small, large = generator.normal(0.0, 1.0, 100), generator.normal(10.0, 1.0, 900)
    low, high = bootstrap_average([small, large])
    middle = (small.mean() + large.mean()) / 2
    half = 1.96 * math.sqrt(small.var() / 100 + large.var() / 900) / 2
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=0.02)
    assert bootstrap_average([small]) == bootstrap_interval(small)
