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
from diffretriever.evaluation.measures import EvaluationResult, evaluate
from diffretriever.evaluation.ties import tie_ranges
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
    job = EvaluateJob(index=index.location, collection=str(folder), output=tmp_path / "out", measures=("MRR@10",))
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
    job = EvaluateJob(index=index.location, collection=str(folder), output=tmp_path / "out", measures=("MRR@10",))
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
        job = EvaluateJob(index=index.location, collection=str(folder), output=tmp_path / "out", measures=("MRR@10",))
        caplog.clear()
        evaluate_job(job, "c")
        report = EvaluationReport.model_validate_json((tmp_path / "out" / "metrics.json").read_text("utf-8"))
        coverage = report.conditions["sparse"].coverage
        assert coverage is not None
        assert (coverage.indexed, coverage.passages, coverage.relevant_indexed, coverage.relevant) == (indexed, 3, 2, 2)
        told = [missing in text for text in (caplog.text, str(report.warnings), repr(dr.evaluate(index, str(folder))))]
        assert any(told) == all(told) == (indexed < 3)
        page = (tmp_path / "out" / "report.md").read_text("utf-8")
        assert "| passages | 3 |\n" in page
        assert f"| of the collection | {indexed} of 3 |" in page
    indexes = (f"whole={whole.location}", f"part={part.location}")
    compared = compare_runs(CompareJob(indexes=indexes, collection=str(folder), output=tmp_path / "compared"), "c")
    assert [told for told in compared.warnings if "passages of mine" in told] == [
        f"part {missing}, or measures mislead"
    ]
    assert "| passages | 3 of 3 | 2 of 3 |" in (tmp_path / "compared" / "comparison.md").read_text("utf-8")
    both = dr.compare({"whole": dr.evaluate(whole, str(folder)), "part": dr.evaluate(part, str(folder))})
    assert missing in repr(both)


def test_runs_take_their_conditions_from_the_evaluation_beside_them(tmp_path: Path) -> None:
    folder = collection(tmp_path / "scifact", {number: f"when to {text}" for number, text in TEXTS.items()})
    for name, retriever in (("bm25", "bm25"), ("slots", "diffretriever-minilm")):
        index = dr.Index.create(tmp_path / name, str(folder), retriever=retriever)
        evaluate_job(EvaluateJob(index=index.location, collection=str(folder), output=tmp_path / f"{name}-out"), "c")
    runs = (
        f"BM25={tmp_path}/bm25-out/sparse.trec",
        f"slots={tmp_path}/slots-out/dense.trec",
        f"copy={run(tmp_path / 'copy.trec', {'1': '2', '2': '3', '3': '1'})}",
    )
    report = compare_runs(CompareJob(runs=runs, collection=str(folder), output=tmp_path / "out"), "c")
    slots, copy = report.conditions["slots"], report.conditions["copy"]
    assert (slots.query_vectors, slots.passage_vectors, slots.passage_tokens, slots.prompt) == (4, 4, 256, "bare")
    assert slots.bytes_per_passage is not None
    assert slots.bytes_per_passage > 4 * 384 * 2
    assert slots.milliseconds is not None
    assert slots.milliseconds > report.conditions["BM25"].milliseconds > 0  # type: ignore[operator]
    assert copy.retriever is None
    page = (tmp_path / "out" / "comparison.md").read_text("utf-8")
    assert page.index("## Conditions") < page.index("## Measures")
    assert "| K_p | none | 4 | ? |" in page
    assert (tmp_path / "out" / "costs.png").stat().st_size > 0
    (published,) = {text for text in report.warnings if "as published" in text}
    assert published.startswith("scifact has 3 passages here, and 5,183 as published")


def test_queries_that_rank_their_own_passage_first_are_warned_of(tmp_path: Path) -> None:
    folder = collection(tmp_path / "mine", {number: f"when to {text}" for number, text in TEXTS.items()})
    index = dr.Index.create(tmp_path / "index", str(folder), retriever="bm25")
    job = EvaluateJob(index=index.location, collection=str(folder), output=tmp_path / "out", strict=True)
    with pytest.raises(ValueError, match="ranks the query's own passage first for 3 of 3 queries"):
        evaluate_job(job, "c")
    assert not (tmp_path / "out").exists()
    evaluate_job(job.model_copy(update={"exclude_self": True}), "c")


def test_ties_are_measured_over_all_orders() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {"c": 1}}
    tied = Run.of({"q1": {"a": 2.0, "x": 2.0, "y": 2.0}, "q2": {"b": 3.0, "x": 2.0}, "q3": {"x": 1.0, "y": 1.0}})
    measures = ("MRR@10", "Recall@100")
    ranges = tie_ranges(tied, qrels, evaluate(tied, qrels, measures), measures)
    lowest, expected, highest = ranges.pop("MRR@10")
    assert ranges == {}, "the order of ties leaves Recall@100 unchanged"
    assert [lowest, highest] == pytest.approx([(1 / 3 + 1) / 3, 2 / 3])
    assert expected == pytest.approx(((1 + 1 / 2 + 1 / 3) / 3 + 1) / 3, abs=0.05)
    untied = Run.of({"q1": {"a": 2.0, "x": 1.0}})
    assert tie_ranges(untied, qrels, evaluate(untied, qrels, measures), measures) == {}


def test_truncated_passages_are_counted(tmp_path: Path) -> None:
    folder = collection(tmp_path / "mine", {number: f"when to {text}" for number, text in TEXTS.items()})
    long = dr.Index.create(tmp_path / "pooled", str(folder), retriever=_pooled(tmp_path, passage_tokens=5))
    conditions = dr.evaluate(long, str(folder), measures=["MRR@10"], modes=["dense"]).conditions["dense"]
    # The limit counts [CLS] and [SEP], so 3 of 5, 4 and 6 tokens are read.
    assert [conditions.cut_passages, conditions.lost_tokens] == pytest.approx([1.0, 6 / 15])
    whole = dr.Index.create(tmp_path / "whole", str(folder), retriever=_pooled(tmp_path, passage_tokens=8))
    conditions = dr.evaluate(whole, str(folder), measures=["MRR@10"], modes=["dense"]).conditions["dense"]
    assert (conditions.cut_passages, conditions.lost_tokens) == (0.0, 0.0)


def _pooled(folder: Path, passage_tokens: int) -> str:
    path = folder / f"pooled-{passage_tokens}.yaml"
    limits = f"max_query_tokens: 256, max_passage_tokens: {passage_tokens}, length_semantics: total"
    path.write_text(f"method: pooled\nbackbone: {{source: minilm}}\ntext: {{{limits}}}\n")
    return str(path)
