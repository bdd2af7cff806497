"""Fitting a selector from sweeps: the artefact that is written chooses as the fit did, and the report says how well."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.budgets.selectors import open_selector
from diffretriever.schemas.selector import FitSelectorJob
from diffretriever.studies.budgets.selector_report import report_selector, selector_table
from tests.studies.budgets.made_up import make_sweep


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
