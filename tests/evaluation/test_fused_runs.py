"""Finished runs fused by `evaluate_job`: what is measured, written, tuned, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from diffretriever.collections import Run, read_run, write_run
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.evaluation.fused import FinishedRuns
from diffretriever.evaluation.measures import evaluate
from diffretriever.schemas.evaluate import EvaluateJob, EvaluationReport
from diffretriever.vectors.fusion import ranked
from diffretriever.vectors.hits import Hits
from tests.evaluation.files import write_qrels

QRELS = {f"q{i}": {f"d{i}": 1} for i in range(8)}
# By words the passage is first for the first half, by vectors for the other one: together they find all.
WORDS = {q: {"x": 3.0, "y": 1.0} | {f"d{i}": 4.0 if i < 4 else 2.0} for i, q in enumerate(QRELS)}
VECTORS = {q: {"x": 0.1, "z": 0.5} | {f"d{i}": 0.2 if i < 4 else 0.9} for i, q in enumerate(QRELS)}
RUNS = {"BM25": Run.of(WORDS), "MiniLM": Run.of(VECTORS)}
PLACES = ("BM25=words.trec", "MiniLM=vectors.trec")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(Path("words.trec"), [RUNS["BM25"]], "words")
    write_run(Path("vectors.trec"), [RUNS["MiniLM"]], "vectors")
    write_qrels(Path("qrels.tsv"), QRELS)
    return tmp_path


def job(**settings: object) -> EvaluateJob:
    return EvaluateJob.model_validate({"runs": PLACES, "qrels": "qrels.tsv", "output": "out", **settings})


def reported(folder: Path) -> EvaluationReport:
    return EvaluationReport.model_validate_json((folder / "out/metrics.json").read_text("utf-8"))


def other_queries() -> None:
    """Write runs and qrels of other queries, where words are worth nothing."""
    for name, run in (("words", WORDS), ("vectors", VECTORS)):
        late = {f"t{q}": found for q, found in run.items() if int(q[1:]) >= 4}
        write_run(Path(f"train-{name}.trec"), [Run.of(late)], name)
    write_qrels(Path("train.tsv"), {f"t{q}": judged for q, judged in QRELS.items() if int(q[1:]) >= 4})


TUNED = {"tune_runs": ("MiniLM=train-vectors.trec", "BM25=train-words.trec"), "tune_qrels": "train.tsv"}


def test_single_and_fused_runs_are_measured(folder: Path) -> None:
    fusions = ("min-max", "z-score", "reciprocal-rank")
    results = evaluate_job(job(fusions=fusions), "the command")
    assert list(results) == ["BM25", "MiniLM", *fusions]
    assert results["BM25"].mean == evaluate(RUNS["BM25"], QRELS).mean
    assert results["min-max"].mean["nDCG@10"] > max(results[name].mean["nDCG@10"] for name in RUNS)
    metrics = reported(folder)
    assert metrics.retriever == "BM25 + MiniLM"
    assert (folder / "out/z-score.trec").read_text().endswith(" BM25+MiniLM.z-score\n")
    assert metrics.config["fusions"] == list(fusions)
    assert metrics.weights == {by: {"BM25": 0.5, "MiniLM": 0.5} for by in fusions}
    assert "| weights of z-score | BM25 0.5, MiniLM 0.5 |" in (folder / "out/report.md").read_text("utf-8")


def test_min_max_is_the_hybrid_of_the_paper(folder: Path) -> None:
    evaluate_job(job(), "the command")
    together = Hits.numbered_alike([run.hits for run in RUNS.values()])
    assert read_run(folder / "out/min-max.trec").hits == ranked(
        "hybrid", {"dense": together[0], "sparse": together[1]}, 1000
    )


def test_weights_are_tuned_on_other_queries(folder: Path) -> None:
    other_queries()
    evaluate_job(job(**TUNED, fusions=("min-max", "z-score", "linear")), "the command")
    for own in reported(folder).weights.values():
        assert own["MiniLM"] >= own["BM25"]


def test_linear_weights_are_tuned_in_steps_of_usual_ranges() -> None:
    # Words' scores are ten thousand times as large: in steps of .1 of the scores themselves vectors never counted.
    words = Run.of({q: {name: 1e4 * score for name, score in found.items()} for q, found in WORDS.items()})
    runs = FinishedRuns.of({"BM25": words, "MiniLM": RUNS["MiniLM"]}, QRELS)
    found = runs.tuned(QRELS, "linear", "nDCG@10")
    assert sum(found.values()) == pytest.approx(1.0)
    assert 0 < found["BM25"] < 0.01
    assert evaluate(runs.fused("linear", found, 10), QRELS, ("nDCG@10",)).mean["nDCG@10"] == pytest.approx(1.0)


def test_queries_are_never_tuned_on_and_reported(folder: Path) -> None:
    other_queries()
    both = {**QRELS, "tq4": {"d4": 1}}
    write_qrels(Path("both.tsv"), both)
    with pytest.raises(
        ValueError, match=r"8 queries .* are reported too \(q0, q1, q2, …\): tune on the queries of anot"
    ):
        evaluate_job(job(**{**TUNED, "tune_qrels": "both.tsv"}), "the command")
    assert not (folder / "out").exists()


def test_runs_that_do_not_belong_together(folder: Path) -> None:
    write_run(Path("fewer.trec"), [Run.of({q: found for q, found in WORDS.items() if q != "q3"})], "x")
    fewer = ("BM25=fewer.trec", "MiniLM=vectors.trec")
    results = evaluate_job(job(runs=fewer), "the command")
    assert results["BM25"].per_query["nDCG@10"]["q3"] == 0
    assert "BM25 has passages for 7 of 8 judged queries: the others count as 0" in reported(folder).warnings
    write_run(Path("alien.trec"), [Run.of({q: {f"other-{i}": 1.0 for i in found} for q, found in WORDS.items()})], "x")
    with pytest.raises(ValueError, match="BM25 and Alien have no passage in common"):
        evaluate_job(job(runs=("BM25=words.trec", "Alien=alien.trec")), "the command")
    write_run(Path("train.trec"), [Run.of({f"t{q}": found for q, found in WORDS.items()})], "x")
    with pytest.raises(ValueError, match="Train has no query of the qrels"):
        evaluate_job(job(runs=("BM25=words.trec", "Train=train.trec")), "the command")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": ("a=",)}, "--runs 'a=': write NAME=PATH"),
        ({"runs": ("a=x", "a=y")}, "the name a is repeated"),
        ({"runs": ("min-max=x", "b=y")}, "min-max is the name of a fusion method"),
        ({"index": "i"}, "give --index and --collection to search, or --runs and --qrels"),
        ({"qrels": None}, "--runs needs --qrels FILE"),
        ({"modes": ("dense",)}, "--modes needs --index"),
        ({"weights": (1,)}, "give one for each of the 2 --runs"),
        ({"weights": (0, 0)}, "at least one above 0"),
        ({"weights": (1, 2), **TUNED}, "give --weights, or --tune-runs with --tune-qrels"),
        ({**TUNED, "tune_runs": ("a=x", "b=y")}, "must have the names of --runs: BM25, MiniLM"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        job(**settings)
