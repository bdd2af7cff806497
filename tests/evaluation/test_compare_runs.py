"""Runs compared: letters of significance, the same in every format, and what is no comparison."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

import diffretriever as dr
from diffretriever.collections import Run, write_run
from diffretriever.core.files import write_text
from diffretriever.evaluation.comparison import better_than, compare_runs, differences_of
from diffretriever.evaluation.comparison_page import lettered_table
from diffretriever.evaluation.conditions import warnings_of
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.schemas.evaluate import CompareJob, Conditions, EvaluateJob, Overlap, Test
from tests.evaluation.files import write_qrels
from tests.evaluation.tex import faults

N = 30
QRELS = {f"q{i}": {f"d{i}": 1} for i in range(N)}


def _run(ranks: list[int]) -> Run:
    """The relevant passage of query i at this rank."""
    return Run.of(
        {f"q{i}": {"x": 2.0, f"d{i}": 3.0} if r == 1 else {"x": 2.0, f"d{i}": 1.0} for i, r in enumerate(ranks)}
    )


RUNS = {"good": _run([1] * N), "fair": _run([1] * (N - 1) + [2]), "b_ad": _run([2] * N)}


@pytest.fixture
def job(tmp_path: Path) -> CompareJob:
    write_qrels(tmp_path / "qrels.tsv", QRELS)
    for name, run in RUNS.items():
        write_run(tmp_path / f"{name}.trec", [run], name)
    runs = tuple(f"{name}={tmp_path / name}.trec" for name in RUNS)
    measures = ("MRR@10", "nDCG@10")
    return CompareJob(runs=runs, qrels=tmp_path / "qrels.tsv", measures=measures, output=tmp_path / "out")


@pytest.mark.parametrize("test", ["t-test", "randomisation"])
def test_letters_name_those_that_are_beaten(job: CompareJob, test: Test) -> None:
    report = compare_runs(job.model_copy(update={"test": test}), "python jobs/compare.py")
    assert report.better_than["MRR@10"] == {"good": ["b_ad"], "fair": ["b_ad"], "b_ad": []}
    assert report.test == test
    table = lettered_table(report)
    assert "a good  1.0000 c" in table
    assert "c b_ad  0.5000" in table
    assert "test" in table
    output = Path(str(job.output))
    pages = {end: (output / f"comparison.{end}").read_text("utf-8") for end in ("md", "html", "tex")}
    assert "| a | good | **1.000**<sup>c</sup> |" in pages["md"]
    assert "<sup>c</sup>" in pages["html"]
    assert faults(pages["tex"]) == []
    assert "| q29 | 1.000 | .500 | +.500 |" in pages["md"]
    assert (output / "compare.yaml").is_file()


def test_p_values_are_corrected_for_all_pairs() -> None:
    generator = np.random.default_rng(1)
    values = {"a": generator.random(N), "b": generator.random(N)}
    p = 1.0
    while not 0.02 < p < 0.049:
        values["b"] = np.clip(values["a"] + generator.normal(0.1, 0.3, N), 0, 1)
        p = ttest_rel(values["a"], values["b"]).pvalue
    rows = {
        name: EvaluationResult(
            {"m": float(own.mean())}, {"m": dict(zip(map(str, range(N)), own.tolist(), strict=True))}
        )
        for name, own in values.items()
    }
    (pair,) = differences_of(rows, "t-test")["m"]
    assert (pair.system, pair.other) == ("b", "a")
    assert pair.p == pytest.approx(p)
    assert pair.interval[0] < pair.mean < pair.interval[1]
    assert better_than(["a", "b"], [pair]) == {"a": [], "b": ["a"]}
    three = differences_of({**rows, "c": rows["a"]}, "t-test")["m"]
    assert better_than(["a", "b", "c"], three)["b"] == [], "two of three pairs are tested with p / 3"


def test_what_is_no_comparison(job: CompareJob, tmp_path: Path) -> None:
    write_run(tmp_path / "other.trec", [Run.of({"q0": {"z": 1.0}})], "other")
    first, *_ = job.runs
    with pytest.raises(ValueError, match="good and other have no passage in common"):
        compare_runs(job.model_copy(update={"runs": (first, f"other={tmp_path}/other.trec")}), "c")
    write_text(tmp_path / "foreign.tsv", "query-id\tcorpus-id\tscore\nz\td\t1\n")
    with pytest.raises(ValueError, match="good has no query of the qrels"):
        compare_runs(job.model_copy(update={"qrels": tmp_path / "foreign.tsv"}), "c")
    assert not (tmp_path / "out").exists()
    for wrong, told in (
        ({"runs": (first,)}, "a comparison needs two --runs"),
        ({"collection": "c"}, "give --qrels FILE, or --collection"),
        ({"qrels": None}, "give --qrels FILE, or --collection"),
    ):
        with pytest.raises(ValueError, match=told):
            CompareJob.model_validate({**job.model_dump(), **wrong})


def test_fusions_are_rows_more(job: CompareJob, tmp_path: Path) -> None:
    job = job.model_copy(update={"fusions": ("min-max", "reciprocal-rank")})
    report = compare_runs(job, "python jobs/compare.py")
    assert list(report.measures) == [*RUNS, "fused by min-max", "fused by reciprocal-rank"]
    assert list(report.conditions) == [*RUNS], "fused systems have no conditions"
    runs = tuple(f"{name}={tmp_path / name}.trec" for name in RUNS)
    own = EvaluateJob(runs=runs, qrels=job.qrels, fusions=job.fusions, measures=job.measures, output=tmp_path / "e")
    evaluated = evaluate_job(own, "c")
    for fusion in job.fusions:
        assert report.measures[f"fused by {fusion}"] == {f"fused by {fusion}": evaluated[fusion].mean}
    assert "d fused by min-max" in lettered_table(report)
    with pytest.raises(ValueError, match="'fused by min-max' is taken by another row: give the run another name"):
        CompareJob.model_validate({**job.model_dump(), "runs": (*job.runs, "fused by min-max=x.trec")})


def test_a_run_that_says_little_is_told_of(job: CompareJob, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert compare_runs(job, "c").warnings == ()
    write_run(tmp_path / "poor.trec", [Run.of({f"q{i}": {"x": 2.0} for i in range(N - 1)})], "poor")
    write_qrels(tmp_path / "more.tsv", {**QRELS, "q99": {"d1": 1}})
    poor = {"runs": (*job.runs, f"poor={tmp_path}/poor.trec"), "qrels": tmp_path / "more.tsv"}
    report = compare_runs(job.model_copy(update=poor), "c")
    assert report.conditions["poor"].overlap == Overlap(queries=N - 1, judged=0.0, relevant=0)
    assert report.conditions["good"].overlap == Overlap(queries=N, judged=0.5, relevant=N)
    told = (
        "good has passages for 30 of 31 judged queries: the others count as 0",
        "poor has passages for 29 of 31 judged queries: the others count as 0",
        "poor finds no passage that is judged relevant: is it of the same collection?",
    )
    assert {*told} <= {*report.warnings}
    assert f"\nwarning: {told[2]}" in lettered_table(report)
    page = (Path(str(job.output)) / "comparison.md").read_text("utf-8")
    assert "Warning: poor finds no passage" in page
    assert "| queries with passages | 30 | 30 | 30 | 29 |" in page
    with pytest.raises(ValueError, match="--strict: good has passages for 30 of 31 judged queries"):
        compare_runs(job.model_copy(update={**poor, "strict": True, "output": tmp_path / "strict"}), "c")
    assert not (tmp_path / "strict").exists()
    single = EvaluateJob(runs=(f"{tmp_path}/poor.trec",), qrels=tmp_path / "more.tsv", output=tmp_path / "e")
    evaluate_job(single, "c")
    assert "warning: poor finds no passage that is judged relevant" in caplog.text
    assert warnings_of({"x": Conditions(overlap=Overlap(queries=0, judged=0, relevant=0))}, N) == [
        "x has passages for none of the 30 judged queries: is it of the same split?"
    ]


def test_indexes_are_searched_and_compared(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "qrels").mkdir(parents=True)
    texts = ["prune roses in winter", "feed the sourdough", "bees shiver in winter"]
    passages = [{"_id": f"p{i}", "text": text} for i, text in enumerate(texts)]
    (corpus / "corpus.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in passages))
    (corpus / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q{i}", "text": "{text}"}}\n' for i, text in enumerate(texts))
    )
    (corpus / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tp0\t1\nq1\tp1\t1\nq2\tp2\t1\n")
    dr.Index.create(tmp_path / "bm25", str(corpus), retriever="bm25")
    write_run(tmp_path / "run.trec", [Run.of({f"q{i}": {"p2": 1.0} for i in range(3)})], "run")
    job = CompareJob(
        runs=(f"constant={tmp_path / 'run.trec'}",),
        indexes=(f"BM25={tmp_path / 'bm25'}",),
        collection=str(corpus),
        measures=("nDCG@10",),
        output=tmp_path / "out",
    )
    report = compare_runs(job, "python jobs/compare.py")
    assert report.measures == {
        "constant": {"constant": {"nDCG@10": pytest.approx(1 / 3)}},
        "BM25": {"BM25": {"nDCG@10": 1}},
    }
    with pytest.raises(ValueError, match="--indexes needs the queries"):
        CompareJob(indexes=("a=b",), qrels=tmp_path / "qrels.tsv", output=tmp_path)
    with pytest.raises(ValueError, match="the name 'a' is taken by another row"):
        CompareJob(indexes=("a=b",), runs=("a=c",), collection="x", output=tmp_path)
