"""Bootstrap intervals, paired tests and rank correlations against scipy, plain loops and values by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from diffretriever.evaluation.statistics import (
    bootstrap_average,
    bootstrap_interval,
    bootstrap_statistic,
    holm,
    kendall,
    paired_p,
    randomisation_p_each,
    spearman,
    t_test_p,
)


@pytest.mark.parametrize("queries", [1, 57, 300, 3000])
def test_the_mean_of_a_plain_loop(queries: int) -> None:
    sample = np.random.default_rng(3).random(queries)
    generator = np.random.default_rng(42)
    means = [sample[generator.integers(queries, size=queries)].mean() for _ in range(1000)]
    assert bootstrap_interval(sample.tolist()) == tuple(np.percentile(means, [2.5, 97.5]).tolist())


def test_a_ratio_leaves_out_resamples_without_a_denominator() -> None:
    ours, theirs = np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.0, 0.0])

    def ratio(a: np.ndarray, b: np.ndarray) -> float:
        return float(a.sum() / b.sum()) if b.any() else math.nan

    assert bootstrap_statistic(ratio, ours, theirs) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap_statistic(lambda _: math.nan, ours)))


def test_an_average_over_sets_weighs_each_alike_and_resamples_each_by_itself() -> None:
    generator = np.random.default_rng(4)
    small, large = generator.normal(0.0, 1.0, 100), generator.normal(10.0, 1.0, 900)
    low, high = bootstrap_average([small, large])
    middle = (small.mean() + large.mean()) / 2
    half = 1.96 * math.sqrt(small.var() / 100 + large.var() / 900) / 2
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=0.02)
    assert bootstrap_average([small]) == bootstrap_interval(small)
    assert bootstrap_interval([0.5]) == (0.5, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_the_t_test_is_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ours, theirs = generator.random(30), generator.random(30)
    expected = scipy.stats.ttest_rel(ours, theirs).pvalue
    assert t_test_p(ours - theirs) == pytest.approx(expected, rel=1e-12)
    ids = [f"q{i}" for i in range(30)]
    both = dict(zip(ids, ours.tolist(), strict=True)), dict(zip(ids, theirs.tolist(), strict=True))
    assert paired_p(*both) == pytest.approx(expected, rel=1e-12)


def test_without_a_difference_nothing_is_significant() -> None:
    assert t_test_p(np.zeros(5)) == t_test_p(np.zeros(0)) == 1.0
    assert randomisation_p_each(np.zeros((1, 5))) == randomisation_p_each(np.zeros((1, 0))) == [1.0]
    assert t_test_p(np.array([0.5])) == 1.0
    assert t_test_p(np.array([0.5, 0.5])) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_few_queries_are_flipped_in_every_way(seed: int) -> None:
    differences = np.random.default_rng(seed).choice([-0.5, 0.0, 0.25, 0.5, 1.0], size=9)
    sums = [abs(float(np.dot(signs, differences))) for signs in itertools.product((-1, 1), repeat=9)]
    expected = np.mean([total >= abs(float(differences.sum())) - 1e-12 for total in sums])
    assert randomisation_p_each(differences[None])[0] == pytest.approx(float(expected), rel=1e-12)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_a_constant_side_has_no_correlation() -> None:
    for coefficient in (spearman, kendall):
        found = coefficient(np.arange(5.0), np.ones(5))
        assert all(map(math.isnan, (found.value, found.low, found.high)))
