"""The report: ours beside the paper's, paired tests, averages, what could not be run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from diffretriever.core.files import read_text
from diffretriever.evaluation.statistics import holm
from diffretriever.studies.reproduction.plan import Plan, Task, make_plan
from diffretriever.studies.reproduction.report import (
    ReproducedCell,
    ReproducedRow,
    ReproductionReport,
    terminal_table,
    write_report,
)
from diffretriever.studies.reproduction.tables import AVERAGE, BEIR7
from tests.studies.reproduction.cases import JobMaker, fake_evaluation
from tests.studies.reproduction.conftest import LLADA

QUERIES = [f"q{i}" for i in range(12)]


def scores(seed: int, shift: float = 0.0) -> dict[str, float]:
    drawn = np.random.default_rng(seed).uniform(0, 0.8, len(QUERIES)) + shift
    return dict(zip(QUERIES, drawn.tolist(), strict=True))


def row_of(report: ReproductionReport, name: str) -> ReproducedRow:
    (found,) = [row for table in report.tables for row in table.rows if row.id == name]
    return found


def cell_of(row: ReproducedRow, collection: str, mode: str) -> ReproducedCell:
    (found,) = [cell for cell in row.cells if (cell.collection, cell.mode) == (collection, mode)]
    return found


def task_of(plan: Plan, name: str, collection: str = "scifact") -> Task:
    (task,) = [row.tasks[collection] for row in plan.rows() if row.row.id == name]
    assert isinstance(task, Task)
    return task


def test_ours_stand_beside_the_papers(job: JobMaker, checkpoint: Path) -> None:
    config = job("multistep-beir7", backbones={LLADA: checkpoint})
    plan = make_plan(config)
    one, two = scores(1), scores(2)
    fake_evaluation(task_of(plan, "zero-shot-llada-1step").results, {"dense": {"nDCG@10": one}})
    fake_evaluation(task_of(plan, "zero-shot-llada-2step").results, {"dense": {"nDCG@10": two}})
    report = write_report(plan, config, {}, "python reproduce.py")

    row = row_of(report, "zero-shot-llada-2step")
    cell = cell_of(row, "scifact", "dense")
    mean = float(np.mean(list(two.values())))
    assert cell.published == 0.463
    assert cell.ours == pytest.approx(mean)
    assert cell.difference == pytest.approx(mean - 0.463)
    (test,) = cell.tests
    assert test.against == "zero-shot-llada-1step"
    assert test.p == pytest.approx(scipy.stats.ttest_rel(list(two.values()), list(one.values())).pvalue)
    assert cell_of(row, "scifact", "hybrid").ours is None
    assert row.status["scifact"] == "done"

    missing = row_of(report, "zero-shot-dream-2step")
    assert missing.status["scifact"].startswith("no weights for Dream-org")
    assert cell_of(missing, "scifact", "dense").published == 0.419

    assert ReproductionReport.model_validate_json(read_text(config.output / "reproduction.json")) == report


def test_stand_ins_are_said_loudly(job: JobMaker, checkpoint: Path) -> None:
    config = job("multistep-beir7", backbones={LLADA: checkpoint})
    plan = make_plan(config)
    assert write_report(plan, config, {}, "c").stand_ins == {}
    fake_evaluation(task_of(plan, "zero-shot-llada-1step").results, {"dense": {"nDCG@10": scores(1)}})
    report = write_report(plan, config, {}, "c")
    assert report.stand_ins == {LLADA: str(checkpoint)}
    assert f"STAND-INS WERE USED: {checkpoint} in place of {LLADA}" in terminal_table(report)
    assert "NOT comparable" in terminal_table(report)


def test_an_average_needs_all_seven_and_pools_their_queries(job: JobMaker, root: Path) -> None:
    config = job("main-beir7", collections=dict.fromkeys(BEIR7, str(root / "scifact")))
    plan = make_plan(config)
    for seed, name in enumerate(BEIR7[:-1]):
        fake_evaluation(task_of(plan, "zero-shot-bm25", name).results, {"sparse": {"nDCG@10": scores(seed)}})
    before = row_of(write_report(plan, config, {}, "c"), "zero-shot-bm25")
    assert cell_of(before, AVERAGE, "sparse").ours is None
    few = {"only": 0.5}
    fake_evaluation(task_of(plan, "zero-shot-bm25", BEIR7[-1]).results, {"sparse": {"nDCG@10": few}})
    after = row_of(write_report(plan, config, {}, "c"), "zero-shot-bm25")
    means = [*(float(np.mean(list(scores(seed).values()))) for seed in range(6)), 0.5]
    assert cell_of(after, AVERAGE, "sparse").ours == pytest.approx(sum(means) / 7)


def test_the_mini_table_corrects_a_columns_tests_together(job: JobMaker) -> None:
    config = job("mini")
    plan = make_plan(config)
    names = ["q1p1", "q4p16", "q4p4-2step"]
    reference = scores(0)
    fake_evaluation(task_of(plan, "q4p4").results, {"sparse": {"nDCG@10": reference}})
    for seed, name in enumerate(names, start=1):
        fake_evaluation(task_of(plan, name).results, {"sparse": {"nDCG@10": scores(seed, 0.05 * seed)}})
    report = write_report(plan, config, {}, "c")
    ours = [[*scores(seed, 0.05 * seed).values()] for seed in (1, 2, 3)]
    expected = holm([scipy.stats.ttest_rel(values, [*reference.values()]).pvalue for values in ours])
    for place, name in enumerate(names):
        (test,) = cell_of(row_of(report, name), "scifact", "sparse").tests
        assert test.against == "q4p4"
        assert test.p == pytest.approx(expected[place])
    assert cell_of(row_of(report, "q1p1"), "scifact", "sparse").published is None


def test_a_failure_is_the_rows_status(job: JobMaker) -> None:
    config = job("main-beir7")
    plan = make_plan(config)
    failed = {task_of(plan, "zero-shot-bm25").results: "the disk\nis full"}
    report = write_report(plan, config, failed, "c")
    assert row_of(report, "zero-shot-bm25").status["scifact"] == "the disk is full"
    assert "no row could be run" in terminal_table(report)
