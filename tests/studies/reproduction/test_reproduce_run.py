"""A run from end to end on tiny stand-ins: two rows, killed and resumed, nothing encoded twice."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from diffretriever.collections import open_collection, read_run
from diffretriever.core.files import remove
from diffretriever.evaluation.measures import evaluate
from diffretriever.pipelines.encode import encode_collection
from diffretriever.schemas.encode import EncodeJob, EncodeSummary
from diffretriever.studies.reproduction import runner
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.plan import Task, make_plan
from diffretriever.studies.reproduction.report import ReproductionReport, write_report
from diffretriever.studies.reproduction.runner import run_plan
from diffretriever.studies.reproduction.tables import load_table
from tests.studies.reproduction.cases import JobMaker
from tests.studies.reproduction.conftest import LLADA, N_PASSAGES

ROWS = ("zero-shot-llada-1step", "zero-shot-llada-2step")


class Stop(BaseException):
    """What a kill looks like from inside."""


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[EncodeSummary]:
    """Every encoding of the runs of a test."""
    summaries: list[EncodeSummary] = []

    def encode_and_note(job: EncodeJob) -> EncodeSummary:
        summaries.append(encode_collection(job))
        return summaries[-1]

    monkeypatch.setattr(runner, "encode_collection", encode_and_note)
    return summaries


def run(config: ReproduceJob) -> ReproductionReport:
    plan = make_plan(config)
    return write_report(plan, config, run_plan(plan, config, "c", lambda _: None), "c")


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_a_run_is_resumed_where_it_was_killed(
    job: JobMaker,
    bucket: str,
    root: Path,
    checkpoint: Path,
    encoded: list[EncodeSummary],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On an object store."""
    config = job("multistep-beir7", backbones={LLADA: checkpoint}, output=f"{bucket}/paper")

    def die(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(runner, "evaluate_job", die)
        with pytest.raises(Stop):
            run(config)
    assert [(summary.encoded, summary.rows) for summary in encoded] == [(N_PASSAGES, N_PASSAGES)]

    report = run(config)
    assert [summary.encoded for summary in encoded] == [N_PASSAGES, N_PASSAGES], "the first index was finished"
    rows = [row for row in report.tables[0].rows if row.id in ROWS]
    assert [row.status["scifact"] for row in rows] == ["done", "done"]
    assert report.notes == (
        "NOT COMPARABLE with the paper: scifact has 25 passages here, 5,183 as published; no differences are shown",
        "records left out of scifact: 1 empty passage",
    )
    assert report.stand_ins == {LLADA: str(checkpoint)}

    tasks = [row.tasks["scifact"] for row in make_plan(config).rows() if row.row.id in ROWS]
    judged = open_collection(str(root / "scifact")).qrels("test")
    for row, task in zip(rows, tasks, strict=True):
        assert isinstance(task, Task)
        for mode in ("dense", "sparse", "hybrid"):
            found = read_run(task.results / f"{mode}.trec")
            assert mode == "sparse" or "p5" in found["p5"], "a query's own passage stays, as in the paper"
            (cell,) = [c for c in row.cells if (c.collection, c.mode) == ("scifact", mode)]
            assert cell.ours == evaluate(found, judged, ["nDCG@10"]).mean["nDCG@10"]
            assert [test.against for test in cell.tests] == ([ROWS[0]] if row.id == ROWS[1] else [])

    # The second index loses its mark, as when the job dies before its end; its passages are there.
    second = tasks[1]
    assert isinstance(second, Task)
    remove(second.summary)
    remove(second.results / "metrics.json")
    again = run(config)
    assert [(s.encoded, s.already_there) for s in encoded[2:]] == [(0, N_PASSAGES)]
    assert again.tables == report.tables

    monkeypatch.setattr(runner, "evaluate_job", die)
    assert run(config).tables == report.tables
    assert len(encoded) == 3


def test_a_retriever_that_fails_does_not_stop_the_others(job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: EncodeJob) -> EncodeSummary:
        raise ValueError("no room for it")

    monkeypatch.setattr(runner, "encode_collection", refuse)
    monkeypatch.setattr(runner, "ray_session", nullcontext)
    lines: list[str] = []
    config = job("mini")
    plan = make_plan(config)
    failed = run_plan(plan, config, "c", lines.append)
    rows = load_table("mini").rows
    assert set(failed.values()) == {"no room for it"}
    assert len(failed) == len(rows)
    assert sum("encoding" in text for text in lines) == len(rows) - 2, "two scores of one index fail together, twice"
