"""Fitted selectors on made-up queries: a planted preference is learned, and noise is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.budgets.selectors import FixedSelector, fit
from diffretriever.studies.budgets.fit_selector import QuerySet
from diffretriever.studies.budgets.selector_report import across_folds, across_sets, as_given
from tests.studies.budgets.sweeps import BUDGETS, noise, outcomes


def queries(n: int, seed: int, gain: float, spread: float = 0.1) -> QuerySet:
    """Queries of 1 to 40 subwords; `gain` is what the budget nearest a fifth of the length adds at every K_p."""
    lengths = np.random.default_rng(100 + seed).integers(1, 41, n).astype(float)
    entropies = np.log2(lengths) + np.random.default_rng(200 + seed).normal(0, 0.2, n)
    wanted = np.abs(np.log2(np.array(BUDGETS)[:, None] * 5 / lengths)).argmin(axis=0)
    values = noise(n, seed=seed, spread=spread)
    for a in range(5):
        values[a] += gain * (1 - np.abs(a - wanted) / 4)
    features = np.stack([lengths, entropies], axis=1)
    return QuerySet(f"set{seed}/test", ("length", "entropy"), features, outcomes(values), 4)


def test_ridge_is_that_of_the_augmented_least_squares() -> None:
    """A fit with a clear signal: one slope for all queries and budgets, as a least-squares solver finds it.

    Every (budget, query) pair is a row of that problem, and the penalty two more rows.
    """
    made = queries(400, 0, 0.3, spread=0.02)
    model = fit(made.features_QF, made.values_AQ, BUDGETS, 0.0)
    assert model.penalty is not None
    standard = (made.features_QF - made.features_QF.mean(axis=0)) / made.features_QF.std(axis=0)
    gains = made.values_AQ - made.values_AQ.mean(axis=0)
    levels = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    rows = np.vstack([level * standard for level in levels] + [np.sqrt(10 * model.penalty * 400) * np.eye(2)])
    slopes = np.linalg.lstsq(rows, np.concatenate([*gains, np.zeros(2)]))[0]
    assert model.coefficients_AF == pytest.approx(np.outer(levels, slopes), abs=1e-9)
    assert model.intercepts_A == pytest.approx(made.values_AQ.mean(axis=1))


def test_a_planted_preference_is_learned_and_carries_to_another_set() -> None:
    made, other = queries(500, 1, 0.3), queries(500, 2, 0.3)
    for row in (across_folds(made, 0.0), across_sets(made, other, 0.0)):
        assert row.interval[0] > 0.02
        assert row.t_test < 0.001
        assert row.randomisation < 0.001
        assert row.recovered is not None
        assert row.recovered_carried is not None
        assert 0.2 < row.recovered < 0.8
        assert row.recovered < row.recovered_carried
    assert across_folds(made, 0.0).fitted_on == "folds"
    assert (across_sets(made, other, 0.0).fitted_on, across_sets(made, other, 0.0).tested_on) == (made.name, other.name)


def test_a_row_by_hand() -> None:
    made = queries(50, 4, 0.2)
    row = as_given(FixedSelector(8), made)
    assert row.mean == pytest.approx(made.outcomes.values_ABQ[3, 2].mean())
    assert (row.mean_budget, row.budgets[8], row.budgets[1]) == (8.0, 1.0, 0.0)
    assert row.headroom == pytest.approx(made.outcomes.values_ABQ[:, 2].max(axis=0).mean() - row.fixed)
    assert row.gain == pytest.approx(row.mean - row.fixed)
    with pytest.raises(ValueError, match="chose K_q = 3, which was not swept"):
        as_given(FixedSelector(3), made)
