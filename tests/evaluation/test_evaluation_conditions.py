"""A query's own document is left out where most queries are passages; an index that lacks passages is warned of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import diffretriever as dr
from diffretriever.collections import Run, write_run
from diffretriever.evaluation.comparison import compare_runs
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.schemas.evaluate import CompareJob, EvaluateJob, EvaluationReport

TEXTS = {"1": "prune roses in winter", "2": "roses bloom in summer", "3": "prune apple trees in summer"}
QRELS = {"1": "2", "2": "1", "3": "1"}
TOLD = "3 of 3 queries are passages of the collection: each is left out of its own results"


def collection(folder: Path, queries: dict[str, str]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", TEXTS), ("queries", queries)):
        lines = [json.dumps({"_id": number, "text": text}) for number, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    judged = "".join(f"{query}\t{passage}\t1\n" for query, passage in QRELS.items())
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", "utf-8")
    return folder


def run(file: Path, lists: dict[str, str]) -> Path:
    """Write a run that ranks one-letter ids in the order given."""
    scored = {query: {passage: -float(rank) for rank, passage in enumerate(found)} for query, found in lists.items()}
    write_run(file, [Run.of(scored)], "x")
    return file


def only(results: Mapping[Any, EvaluationResult]) -> float:
    (result,) = results.values()
    return result.mean["MRR@10"]


@pytest.mark.parametrize("name", ["arguana", "beir-arguana", "mine"])
def test_an_index_of_the_queries_themselves_decides(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = collection(tmp_path / name, {number: f"{text.upper()} " for number, text in TEXTS.items()})
    index = dr.Index.create(tmp_path / "index", str(folder), retriever="bm25")
    job = EvaluateJob(index=index.place, collection=str(folder), output=tmp_path / "out", measures=("MRR@10",))
    assert only(evaluate_job(job, "c")) == 1.0
    assert TOLD in caplog.text
    assert TOLD in (tmp_path / "out" / "report.md").read_text("utf-8")
    measured = dr.evaluate(index, str(folder), measures=["MRR@10"])
    assert only(measured.results) == 1.0
    assert TOLD in repr(measured)
    assert only(evaluate_job(job.model_copy(update={"exclude_self": False}), "c")) == 0.5


@pytest.mark.parametrize("name", ["cranfield", "arguana"])
def test_equal_ids_of_other_texts_decide_nothing(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = collection(tmp_path / name, {number: f"when to {text}" for number, text in TEXTS.items()})
    index = dr.Index.create(tmp_path / "index", str(folder), retriever="bm25")
    job = EvaluateJob(index=index.place, collection=str(folder), output=tmp_path / "out", measures=("MRR@10",))
    assert only(evaluate_job(job, "c")) == 0.5
    assert "left out" not in caplog.text


@pytest.mark.parametrize(
    ("lists", "exclude", "expected"),
    [
        ({"1": "12", "2": "21", "3": "31"}, None, 1.0),
        ({"1": "12", "2": "21", "3": "31"}, False, 0.5),
        ({"1": "12", "2": "13", "3": "13"}, None, 2.5 / 3),
        ({"1": "312", "2": "132", "3": "132"}, True, 2.5 / 3),
    ],
)
def test_runs_that_rank_the_queries_first_decide(
    tmp_path: Path, lists: dict[str, str], exclude: bool | None, expected: float
) -> None:
    folder = collection(tmp_path / "any", dict.fromkeys(TEXTS, "a question"))
    for judged in ({"collection": str(folder)}, {"qrels": folder / "qrels" / "test.tsv"}):
        job = EvaluateJob(
            runs=(str(run(tmp_path / "r.trec", lists)),),
            output=tmp_path,
            measures=("MRR@10",),
            exclude_self=exclude,
            **judged,
        )
        assert evaluate_job(job, "c")["r"].mean["MRR@10"] == pytest.approx(expected)


def test_passages_judged_relevant_to_the_query_of_their_id_stay(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("1 0 1 1\n2 0 2 1\n")
    job = EvaluateJob(
        runs=(str(run(tmp_path / "r.trec", {"1": "12", "2": "21"})),),
        qrels=tmp_path / "qrels.txt",
        output=tmp_path / "out",
    )
    assert evaluate_job(job, "c")["r"].mean["MRR@10"] == 1.0


def test_an_index_that_lacks_passages_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = collection(tmp_path / "mine", {number: f"when to {text}" for number, text in TEXTS.items()})
    whole = dr.Index.create(tmp_path / "whole", str(folder), retriever="bm25")
    rows = [{"id": number, "text": text} for number, text in [*TEXTS.items(), ("other", "bees")] if number != "3"]
    part = dr.Index.create(tmp_path / "part", rows, retriever="bm25")
    missing = "contains 2 of the 3 passages of mine: encode the others"
    for index, indexed in ((whole, 3), (part, 2)):
        job = EvaluateJob(index=index.place, collection=str(folder), output=tmp_path / "out", measures=("MRR@10",))
        caplog.clear()
        evaluate_job(job, "c")
        report = EvaluationReport.model_validate_json((tmp_path / "out" / "metrics.json").read_text("utf-8"))
        assert report.coverage is not None
        assert (report.coverage.indexed, report.coverage.passages) == (indexed, 3)
        told = [missing in text for text in (caplog.text, *report.warnings, repr(dr.evaluate(index, str(folder))))]
        assert any(told) == all(told) == (indexed < 3)
    indexes = (f"whole={whole.place}", f"part={part.place}")
    compared = compare_runs(CompareJob(indexes=indexes, collection=str(folder), output=tmp_path / "compared"), "c")
    assert [told for told in compared.warnings if "passages of mine" in told] == [
        f"part {missing}, or measures mislead"
    ]
    assert "whole contains 3 of the 3 passages" in (tmp_path / "compared" / "comparison.md").read_text("utf-8")
    both = dr.compare({"whole": dr.evaluate(whole, str(folder)), "part": dr.evaluate(part, str(folder))})
    assert missing in repr(both)
