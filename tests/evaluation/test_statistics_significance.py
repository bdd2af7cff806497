"""Paired tests against scipy and against trying every way by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from diffretriever.evaluation.statistics import holm, paired_p, randomisation_p, randomisation_p_each, t_test_p


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
    for test in (t_test_p, randomisation_p):
        assert test(np.zeros(5)) == 1.0
        assert test(np.zeros(0)) == 1.0
    assert t_test_p(np.array([0.5])) == 1.0
    assert t_test_p(np.array([0.5, 0.5])) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_few_queries_are_flipped_in_every_way(seed: int) -> None:
    differences = np.random.default_rng(seed).choice([-0.5, 0.0, 0.25, 0.5, 1.0], size=9)
    sums = [abs(float(np.dot(signs, differences))) for signs in itertools.product((-1, 1), repeat=9)]
    expected = np.mean([total >= abs(float(differences.sum())) - 1e-12 for total in sums])
    assert randomisation_p(differences) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2])
def test_many_queries_give_scipys_permutation_test(shift: float) -> None:
    differences = np.random.default_rng(7).normal(shift, 1.0, 200)
    found = scipy.stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True,
        n_resamples=9999, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert randomisation_p(differences) == pytest.approx(float(found.pvalue), abs=0.02)


def test_both_tests_agree_on_normal_differences_and_the_smallest_p_is_not_0() -> None:
    differences = np.random.default_rng(2).normal(0.15, 1.0, 300)
    assert randomisation_p(differences) == pytest.approx(t_test_p(differences), abs=0.01)
    assert randomisation_p(np.ones(300)) == 1 / 10_001


def test_several_comparisons_at_once_are_those_one_by_one() -> None:
    generator = np.random.default_rng(3)
    few = np.where(np.arange(50) < 6, generator.normal(size=50), 0.0)
    differences = np.stack([generator.normal(0.2, 1.0, 50), few, np.zeros(50), generator.normal(0.0, 1.0, 50)])
    assert randomisation_p_each(differences) == [randomisation_p(row) for row in differences]


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
