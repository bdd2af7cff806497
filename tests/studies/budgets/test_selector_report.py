"""Fitted selectors: a planted preference is learned, written and reported, and noise is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.budgets.selectors import FixedSelector, fit, open_selector
from diffretriever.schemas.selector import FitSelectorJob
from diffretriever.studies.budgets.fit_selector import QuerySet
from diffretriever.studies.budgets.selector_report import (
    across_folds,
    across_sets,
    as_given,
    report_selector,
    selector_table,
)
from tests.studies.budgets.made_up import make_sweep
from tests.studies.budgets.sweeps import BUDGETS, noise, outcomes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweeps")
    for name in ("one", "two"):
        make_sweep(root, name, n=200)
    return root


def job(root: Path, output: Path, **changes: object) -> FitSelectorJob:
    values: dict[str, object] = {
        "sweeps": (root / "one/test", root / "two/test"),
        "mode": "dense",
        "output": output,
    }
    return FitSelectorJob.model_validate(values | changes)


def test_a_planted_preference_is_fitted_written_and_reported(root: Path, tmp_path: Path) -> None:
    report = report_selector(job(root, tmp_path), "python jobs/fit_selector.py")
    selector = open_selector(str(tmp_path / "fitted_selector.json"), "f00d")
    chosen = [selector.choose({"length": float(n), "entropy": n**0.5}) for n in (2, 28)]
    assert chosen == [1, 4]
    rows = {(row.selector, row.fitted_on, row.tested_on): row for row in report.rows}
    assert set(rows) == {
        *(("rule", "nothing", name) for name in ("one/test", "two/test", "all")),
        *(("learned λ=0", "folds", name) for name in ("one/test", "two/test", "all")),
        ("learned λ=0", "one/test", "two/test"),
        ("learned λ=0", "two/test", "one/test"),
    }
    for key, row in rows.items():
        if key[0] != "rule":
            assert row.interval[0] > 0
            assert row.recovered is not None
            assert row.recovered > 0.3
    assert report.curve[-1].mean_budget <= report.curve[0].mean_budget, "a higher cost takes fewer slots"
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "5 are significantly better" in page
    assert "](curve.png)" in page
    assert "learned λ=0" in selector_table(report)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": ("size",)}, "no query feature 'size'"),
        ({"features": ("mean_idf",)}, "needs document frequencies"),
        ({"features": ()}, "features\n.*at least 1 item"),
    ],
)
def test_mistakes_are_named(root: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report_selector(job(root, tmp_path, **changes), "x")


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
