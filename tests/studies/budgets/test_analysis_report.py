"""The analysis report: the same bytes every time, and its numbers those of a plain calculation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from pyarrow import parquet

from diffretriever.evaluation import statistics
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import BudgetSelection
from diffretriever.studies.budgets.analysis import read_data
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob
from diffretriever.studies.budgets.features import FeatureSection, binned_means
from diffretriever.studies.budgets.grids import GridSection
from diffretriever.studies.budgets.oracle_gains import OracleSection
from diffretriever.studies.budgets.report import AnalysisReport, analyse
from diffretriever.studies.budgets.significance import SignificanceSection
from diffretriever.studies.budgets.sweep_files import Outcomes
from tests.studies.budgets.made_up import make_sweep

FILES = {"report.md", "report.json", "per_query.parquet", "analyse_budgets.yaml", "features.png"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweeps")
    make_sweep(root, "one", modes=("dense", "pooled-slots"), splits=("test", "train"))
    make_sweep(root, "two", modes=("dense", "pooled-slots"))
    return root


def job(root: Path, output: Path, **changes: object) -> AnalyseBudgetsJob:
    values: dict[str, object] = {
        "sweeps": (root / "one/test", root / "two/test"),
        "budget": "q1p4",
        "mode": "dense",
        "output": output,
    }
    return AnalyseBudgetsJob.model_validate(values | changes)


@pytest.fixture(scope="module")
def made(root: Path) -> tuple[AnalysisReport, Path]:
    output = root / "report"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_RESAMPLES", 50)
        return analyse(job(root, output), "python jobs/analyse_budgets.py"), output


def outcomes(root: Path, name: str) -> Outcomes:
    return Outcomes.read(root / name, "test", "dense", "nDCG@10")


def test_the_report_is_whole(made: tuple[AnalysisReport, Path]) -> None:
    report, output = made
    pictures = {"grid-dense.png", "oracles-dense.png", "scoring.png"}
    assert {file.name for file in output.iterdir()} == FILES | pictures
    page = (output / "report.md").read_text("utf-8")
    for file in pictures | {"features.png"}:
        assert f"]({file})" in page
    for line in ("## Significance", "## Where the gains come from", "python jobs/analyse_budgets.py", "†", "luck"):
        assert line in page
    assert AnalysisReport.model_validate_json((output / "report.json").read_text("utf-8")) == report


def test_the_published_report_is_read_and_written_as_it_is() -> None:
    folder = Path(__file__).resolve().parents[3] / "docs/budgets"
    text = (folder / "report.json").read_text("utf-8")
    report = AnalysisReport.model_validate_json(text)
    assert report.model_dump_json(indent=2) + "\n" == text
    assert report.page() == (folder / "report.md").read_text("utf-8")


def test_grids_are_means_and_the_average_weighs_sets_alike(root: Path, made: tuple[AnalysisReport, Path]) -> None:
    means = {name: outcomes(root, name).values_ABQ.mean(axis=2) for name in ("one", "two")}
    grids = {grid.collection: grid for grid in made[0].section(GridSection).grids}
    assert grids["one/test"].means == pytest.approx(means["one"])
    assert np.array(grids["average"].means) == pytest.approx((means["one"] + means["two"]) / 2)
    best = np.unravel_index(means["one"].argmax(), (2, 2))
    assert grids["one/test"].best == Budget((1, 4)[best[0]], (1, 4)[best[1]])


def test_oracles_are_maxima(root: Path, made: tuple[AnalysisReport, Path]) -> None:
    gains = {(gain.collection, gain.side): gain for gain in made[0].section(OracleSection).oracles}
    values = outcomes(root, "two").values_ABQ
    fixed = values[0, 1]
    assert gains["two/test", "query"].headroom == pytest.approx((values[:, 1].max(axis=0) - fixed).mean())
    average = [gains[f"{name}/test", "query"].headroom for name in ("one", "two")]
    assert gains["average", "query"].headroom == pytest.approx(np.mean(average))


def test_correlations_and_tests_pool_the_queries(root: Path, made: tuple[AnalysisReport, Path]) -> None:
    report, output = made
    rows = parquet.read_table(output / "per_query.parquet").to_pylist()
    pooled = next(c for c in report.section(FeatureSection).correlations if (c.feature, c.queries) == ("length", "all"))
    expected = scipy.stats.spearmanr([row["length"] for row in rows], [row["best_query_budget"] for row in rows])
    assert (pooled.collection, pooled.n) == ("pooled", len(rows)) == ("pooled", 60)
    assert pooled.spearman.value == pytest.approx(expected.statistic)
    values = np.concatenate([outcomes(root, name).values_ABQ for name in ("one", "two")], axis=2)
    cells = {cell.budget: cell for cell in report.section(SignificanceSection).cells if cell.collection == "average"}
    assert set(cells) == {Budget(1, 1), Budget(4, 1), Budget(4, 4)}
    assert cells[Budget(4, 1)].t_test == pytest.approx(scipy.stats.ttest_rel(values[1, 0], values[0, 1]).pvalue)


def test_the_fixed_budget_is_chosen_on_other_queries(root: Path, tmp_path: Path) -> None:
    chosen = job(root, tmp_path, budget=None, selection=root / "one/train", sweeps=(root / "two/test",))
    data = read_data(chosen)
    assert data.fixed == Outcomes.read(root / "one", "train", "dense", "nDCG@10").best()
    assert data.chosen == "best mean nDCG@10 of dense on one/train"
    assert [grid.collection for grid in GridSection.compute(data).grids] == ["selection", "two/test"]
    assert data.facts.queries == {"two/test": 30}


def test_each_collection_has_its_own_measure(root: Path, tmp_path: Path) -> None:
    """The paper's Figure 7 pools queries of MRR@10 and of nDCG@10."""
    make_sweep(tmp_path, "msmarco", splits=("dev.small", "dl19"), measures=("nDCG@10", "MRR@10"))
    place = tmp_path / "msmarco"
    sweeps = (place / "dev.small", place / "dl19", root / "one/test")
    data = read_data(job(root, tmp_path / "r", sweeps=sweeps))
    assert data.measure == "nDCG@10 and MRR@10 (msmarco/dev.small)"
    for name, measure in (("dev.small", "MRR@10"), ("dl19", "nDCG@10")):
        expected = Outcomes.read(place, name, "dense", measure).values_ABQ
        assert np.array_equal(data.outcomes[f"msmarco/{name}", "dense"].values_ABQ, expected)
    measures = ("msmarco=MRR@10", "msmarco/dev.small=nDCG@10")
    one_each = read_data(job(root, tmp_path / "r", sweeps=sweeps, measures=measures))
    assert one_each.measure == "nDCG@10 and MRR@10 (msmarco/dl19)"
    assert read_data(job(root, tmp_path / "r", sweeps=sweeps, measures=("nDCG@10",))).measure == "nDCG@10"
    with pytest.raises(ValueError, match=r"--measures: none of the sweeps is of 'mscarmo'\. Did you mean"):
        read_data(job(root, tmp_path / "r", sweeps=sweeps, measures=("mscarmo=MRR@10",)))


def test_a_selection_file_names_the_fixed_budget(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "selection.json"
    selection = BudgetSelection(
        budget=Budget(4, 1), mode="dense", measure="nDCG@10", split="train", value=0.5, grid={Budget(4, 1): 0.5},
        queries=30, collection="one", retriever="masked tiny", backbone="tiny", adapter=None, fingerprint="f00d",
        command="x",
    )  # fmt: skip
    path.write_text(selection.model_dump_json())
    data = read_data(job(root, tmp_path, budget=str(path)))
    assert (data.fixed, data.chosen) == (Budget(4, 1), "best mean nDCG@10 of dense on one/train")
    path.write_text(selection.model_copy(update={"fingerprint": "beef"}).model_dump_json())
    with pytest.raises(ValueError, match=r"is of encoder beef .* the sweeps of f00d"):
        read_data(job(root, tmp_path, budget=str(path)))
    path.write_text(selection.model_copy(update={"split": "test"}).model_dump_json())
    with pytest.raises(ValueError, match="was chosen on one/test, which is among --sweeps"):
        read_data(job(root, tmp_path, budget=str(path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": None}, "give --budget, or --selection"),
        ({"budget": None, "selection": "SWEEPS/one/test"}, "choose the budget on other queries"),
        ({"sweeps": ()}, "at least one of --sweeps"),
        ({"budget": "q2p4"}, "q2p4 was not swept"),
        ({"mode": "sparse"}, "no mode 'sparse'"),
        ({"sweeps": ("SWEEPS/one",)}, "no sweep at"),
        ({"sweeps": ("SWEEPS/one/dev",)}, "one/dev is no split of the sweep"),
        ({"sweeps": ("SWEEPS/one/test", "SWEEPS/one/test")}, "is given twice"),
    ],
)
def test_mistakes_are_named(root: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    def placed(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(placed, value))
        return value.replace("SWEEPS", str(root)) if isinstance(value, str) else value

    with pytest.raises(ValueError, match=message):
        analyse(job(root, tmp_path, **{name: placed(value) for name, value in changes.items()}), "x")
    assert not list(tmp_path.iterdir())


def test_bins_of_equal_size_by_hand() -> None:
    features = np.array([4.0, 1.0, 3.0, 2.0, 8.0, 6.0, 7.0, 5.0])
    bins = binned_means(features, features**2, most=4)
    assert [(b.n, b.feature, b.mean) for b in bins] == [(2, 1.5, 2.5), (2, 3.5, 12.5), (2, 5.5, 30.5), (2, 7.5, 56.5)]
