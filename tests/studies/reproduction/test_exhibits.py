"""Figures, and the tables that need no results: what is published, what follows from it, ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from diffretriever.schemas.budget import Budget
from diffretriever.studies.reproduction.exhibits import EXHIBITS, Exhibit, Findings, exhibit_listing
from diffretriever.studies.reproduction.exhibits.hyperparameters import published_hyperparameters
from diffretriever.studies.reproduction.exhibits.prompts import published_prompts
from diffretriever.studies.reproduction.plan import make_plan
from diffretriever.studies.reproduction.report import make_report
from diffretriever.studies.reproduction.tables import BEIR7, load_table
from tests.studies.reproduction.cases import JobMaker


def test_the_encoders_prompts_are_the_papers_letter_by_letter(job: JobMaker) -> None:
    found = findings(job, "prompts")
    assert exhibit("prompts").lacks(found) == []
    assert len(published_prompts()) == 3


def test_the_recipe_paper_has_the_papers_hyperparameters(job: JobMaker) -> None:
    assert exhibit("hyperparameters").lacks(findings(job, "hyperparameters")) == []
    assert len([line for lines in published_hyperparameters().values() for line in lines.values()]) == 29


MEANS = [[0.2 + 0.01 * (a + b) - 0.03 * (a - 2) ** 2 for b in range(5)] for a in range(5)]
SETS = ("msmarco/dev", "msmarco/dl19", *(f"{name}/test" for name in BEIR7))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own analysis as if it were of the paper's collections, with made-up means."""
    folder = tmp_path_factory.mktemp("analysis")
    report = json.loads((Path(__file__).parents[3] / "docs" / "budgets" / "report.json").read_text("utf-8"))
    grid = next(g for g in report["grids"] if g["mode"] == "hybrid")
    oracles = [o for o in report["oracles"] if o["mode"] == "hybrid" and o["collection"] == "scifact/test"]
    shifted = {name: [[m + 0.01 * n for m in row] for row in MEANS] for n, name in enumerate(("selection", *SETS))}
    report["grids"] = [
        {**grid, "collection": name, "means": means, "spread": float(np.ptp(means))} for name, means in shifted.items()
    ]
    report["oracles"] = [{**o, "collection": name, "fixed": 0.4} for name in SETS for o in oracles]
    (folder / "report.json").write_text(json.dumps(report))
    columns = {"mode": ["dense", "sparse"] * 6, "length": [3.0, 4.0, 5.0] * 4, "entropy": [1.0, 2.0, 3.0] * 4}
    parquet.write_table(pa.table({**columns, "best_query_budget": [1, 2, 4] * 4}), folder / "per_query.parquet")
    return folder


def findings(job: JobMaker, *tables: str, **changes: object) -> Findings:
    config = job(*tables, **changes)
    plan = make_plan(config)
    return Findings(config, plan, make_report(plan, config, {}, "c"))


def exhibit(name: str) -> Exhibit:
    return next(each for each in EXHIBITS if each.name == name)


def test_an_analysis_is_read_by_the_papers_names(job: JobMaker, analysis: Path) -> None:
    found = findings(job, "oracles", analyses={"Dream": analysis}).analyses["Dream"]
    grid = found.grid("msmarco-train", "hybrid")
    assert grid is not None
    assert grid.means == tuple(map(tuple, MEANS))
    average = found.grid("beir7-average", "hybrid")
    assert average is not None
    assert np.array(average.means) == pytest.approx(np.array(MEANS) + 0.06)
    assert average.best == Budget(4, 16)
    assert average.spread == pytest.approx(np.ptp(MEANS))
    assert found.grid("dl20", "hybrid") is None
    assert found.grid("beir7-average", "dense") is None
    gains = found.gains("beir7-average", "hybrid")
    assert set(gains) == {"query", "passage", "joint"}
    assert gains["joint"][0] == pytest.approx(0.4)
    assert gains["joint"][1] > gains["query"][1]


def test_a_folder_without_an_analysis_is_refused(job: JobMaker, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--analyses Dream=.*no report.json"):
        _ = findings(job, "oracles", analyses={"Dream": tmp_path}).analyses
    with pytest.raises(ValueError, match=r"--latencies .*no such file"):
        _ = findings(job, "oracles", latencies=tmp_path / "none.json").latencies


@pytest.mark.parametrize("name", ["latency-quality", "oracles", "query-features", "latency-scaling", "heat-maps-train"])
def test_a_figure_is_drawn_from_what_is_published(job: JobMaker, name: str) -> None:
    found = findings(job, name)
    shown = exhibit(name).show(found)
    assert shown.files[f"{name}.png"].startswith(b"\x89PNG")
    assert exhibit(name).lacks(found)


def test_a_dry_run_names_every_table_and_figure_with_its_command_and_what_it_lacks(job: JobMaker) -> None:
    found = findings(job, dry_run=True)
    text = exhibit_listing(found.plan, found.job, found.report)
    places = [line.partition(":")[0] for line in text.splitlines() if not line.startswith(" ")]
    papers = [f"Table {n}" for n in range(1, 11)] + [f"Figure {n}" for n in range(1, 12)]
    assert sorted(places) == sorted([*papers, "Beyond the paper"])
    for exhibit in EXHIBITS:
        (_, said) = text.split(f"[{exhibit.name}]\n")
        command, reason, *_ = said.splitlines()
        assert command.startswith("  command: python "), exhibit.name
        assert f"--tables {exhibit.name}" in command
        assert reason.startswith("  lacks: ") or reason == "  whole"
    assert f"{len(load_table('mini').rows)} results: not run yet" in text
    assert "command: python -m benchmarks.latency --device cuda --backbones Qwen2.5=FOLDER" in text


def test_missing_weights_do_not_hide_missing_collections(job: JobMaker) -> None:
    found = findings(job, "prompt-comparison", dry_run=True)
    text = exhibit_listing(found.plan, found.job, found.report)
    assert "lacks: 6 results: no weights for meta-llama/Meta-Llama-3-8B-Instruct" in text
    for name in ("msmarco-dev", "dl19", "dl20"):
        assert f"lacks: no collection {name}: give --collections msmarco=PATH" in text
