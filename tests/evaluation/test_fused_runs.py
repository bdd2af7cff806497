"""Finished runs fused by `evaluate_job`: what is measured, written, tuned, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from diffretriever.collections import Run, read_run, write_qrels, write_run
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.evaluation.fused import FinishedRuns, Weights, fusion_table
from diffretriever.evaluation.measures import evaluate
from diffretriever.schemas.evaluate import EvaluateJob, EvaluationReport
from diffretriever.schemas.fusion import FusionReport
from diffretriever.scoring.fusion import ranked
from diffretriever.scoring.hits import Hits

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


def other_queries() -> None:
    """Write runs and qrels of other queries, where words are worth nothing."""
    for name, run in (("words", WORDS), ("vectors", VECTORS)):
        late = {f"t{q}": found for q, found in run.items() if int(q[1:]) >= 4}
        write_run(Path(f"train-{name}.trec"), [Run.of(late)], name)
    write_qrels(Path("train.tsv"), {f"t{q}": judged for q, judged in QRELS.items() if int(q[1:]) >= 4})


TUNED = {"tune_runs": ("MiniLM=train-vectors.trec", "BM25=train-words.trec"), "tune_qrels": "train.tsv"}


def test_single_and_fused_runs_are_measured_and_tested(folder: Path) -> None:
    fusions = ("min-max", "z-score", "reciprocal-rank")
    results = evaluate_job(job(fusions=fusions), "the command")
    assert list(results) == ["BM25", "MiniLM", *fusions]
    assert results["BM25"].mean == evaluate(RUNS["BM25"], QRELS).mean
    assert results["min-max"].mean["nDCG@10"] > max(results[name].mean["nDCG@10"] for name in RUNS)
    metrics = EvaluationReport.model_validate_json((folder / "out/metrics.json").read_text("utf-8"))
    assert metrics.retriever == "BM25 + MiniLM"
    assert (folder / "out/z-score.trec").read_text().endswith(" BM25+MiniLM.z-score\n")
    assert metrics.config["fusions"] == list(fusions)
    report = FusionReport.model_validate_json((folder / "out/fusion.json").read_text("utf-8"))
    assert (report.measure, report.tuned_by, report.tuned_on) == ("nDCG@10", None, None)
    assert report.best == max(RUNS, key=lambda name: results[name].mean["nDCG@10"])
    for own in report.fused:
        assert own.weights == {"BM25": 0.5, "MiniLM": 0.5}
        assert own.difference == pytest.approx(own.mean - results[report.best].mean["nDCG@10"])
        assert own.interval[0] <= own.difference <= own.interval[1]
        assert own.t_test <= own.t_test_holm <= 1
    table = fusion_table(report, results).splitlines()
    assert table[0].split()[:2] == ["run", "weights"]
    assert table[4].startswith("min-max          BM25 0.5, MiniLM 0.5")
    assert "## What fusing gives" in (folder / "out/report.md").read_text("utf-8")


def test_min_max_is_the_hybrid_of_the_paper(folder: Path) -> None:
    evaluate_job(job(), "the command")
    together = Hits.numbered_alike([run.hits for run in RUNS.values()])
    assert read_run(folder / "out/min-max.trec").hits == ranked(
        "hybrid", {"dense": together[0], "sparse": together[1]}, 1000
    )


def test_given_weights_are_shares_of_their_sum(folder: Path) -> None:
    evaluate_job(job(weights=(0, 3)), "the command")
    (own,) = json.loads((folder / "out/fusion.json").read_text())["fused"]
    assert own["weights"] == {"BM25": 0.0, "MiniLM": 1.0}
    assert own["tuned"] is None
    # What words alone have found is still there, behind.
    assert set(read_run(folder / "out/min-max.trec")["q0"]) == {"d0", "x", "y", "z"}


def test_weights_are_tuned_on_other_queries(folder: Path) -> None:
    other_queries()
    evaluate_job(job(**TUNED, fusions=("min-max", "z-score", "linear")), "the command")
    report = FusionReport.model_validate_json((folder / "out/fusion.json").read_text("utf-8"))
    assert (report.tuned_by, report.tuned_on) == ("nDCG@10", "train.tsv")
    for own in report.fused:
        assert own.tuned == pytest.approx(1.0)
        assert own.weights["MiniLM"] >= own.weights["BM25"]
    assert "the best nDCG@10 on train.tsv" in (folder / "out/report.md").read_text("utf-8")
    # The same folder, without fusing.
    evaluate_job(EvaluateJob(run=Path("words.trec"), qrels=Path("qrels.tsv"), output=Path("out")), "c")
    assert not (folder / "out/fusion.json").exists()


def test_of_equal_weights_the_most_alike_are_taken() -> None:
    runs = FinishedRuns.of({**RUNS, "again": RUNS["BM25"]}, QRELS)
    judged = {query: {"nothing": 1} for query in QRELS}
    found = Weights.tuned_on(runs, judged, "reciprocal-rank", "nDCG@10")
    assert sorted(found.by_run.values()) == [0.3, 0.3, 0.4]
    assert found.tuned == 0.0


def test_linear_weights_are_tuned_in_steps_of_usual_ranges() -> None:
    # Words' scores are ten thousand times as large: in steps of .1 of the scores themselves vectors never counted.
    words = Run.of({q: {name: 1e4 * score for name, score in found.items()} for q, found in WORDS.items()})
    runs = FinishedRuns.of({"BM25": words, "MiniLM": RUNS["MiniLM"]}, QRELS)
    found = Weights.tuned_on(runs, QRELS, "linear", "nDCG@10")
    assert found.tuned == pytest.approx(1.0)
    assert sum(found.by_run.values()) == pytest.approx(1.0)
    assert 0 < found.by_run["BM25"] < 0.01
    assert evaluate(runs.fused("linear", found.by_run, 10), QRELS, ("nDCG@10",)).mean["nDCG@10"] == found.tuned


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
    with pytest.raises(ValueError, match=r"BM25 lacks 1 of 8 queries, which another run has \(q3\).*--allow-missing"):
        evaluate_job(job(runs=fewer), "the command")
    results = evaluate_job(job(runs=fewer, allow_missing=True), "the command")
    assert results["BM25"].per_query["nDCG@10"]["q3"] == 0
    write_run(Path("alien.trec"), [Run.of({q: {f"other-{i}": 1.0 for i in found} for q, found in WORDS.items()})], "x")
    with pytest.raises(ValueError, match="BM25 and Alien have no passage in common"):
        evaluate_job(job(runs=("BM25=words.trec", "Alien=alien.trec")), "the command")
    write_run(Path("train.trec"), [Run.of({f"t{q}": found for q, found in WORDS.items()})], "x")
    with pytest.raises(ValueError, match="Train has no query of the qrels"):
        evaluate_job(job(runs=("BM25=words.trec", "Train=train.trec")), "the command")


def test_queries_may_come_in_any_order() -> None:
    backwards = Run.of({q: VECTORS[q] for q in reversed(QRELS)})
    one, other = (FinishedRuns.of({"BM25": RUNS["BM25"], "MiniLM": run}, QRELS) for run in (RUNS["MiniLM"], backwards))
    equal = Weights.given(one.names).by_run
    assert one.fused("z-score", equal, 5).hits == other.fused("z-score", equal, 5).hits


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": PLACES[:1]}, "--runs has one run"),
        ({"runs": ("a.trec", "b.trec")}, "--runs 'a.trec': write NAME=PLACE"),
        ({"runs": ("a=x", "a=y")}, "two are called a"),
        ({"runs": ("min-max=x", "b=y")}, "a way to fuse is called min-max"),
        ({"run": "r"}, "give --run or --runs, not both"),
        ({"index": "i"}, "give --runs or --index, not both"),
        ({"qrels": None}, "--runs needs --qrels FILE"),
        ({"modes": ("dense",)}, "--modes goes with --index"),
        ({"version": 2}, "--version goes with --index"),
        ({"weights": (1,)}, "give one for each of the 2 --runs"),
        ({"weights": (0, 0)}, "not all of them 0"),
        ({"weights": (1, -1)}, "greater than or equal to 0"),
        ({"fusions": ()}, "at least one way to fuse"),
        ({"weights": (1, 2), **TUNED}, "give --weights or --tune-runs, not both"),
        ({**TUNED, "tune_runs": ("a=x", "b=y")}, "must have the names of --runs: BM25, MiniLM"),
        ({**TUNED, "tune_qrels": None}, "--tune-runs needs --tune-split"),
        ({**TUNED, "tune_qrels": None, "tune_split": "train"}, "--tune-split is one of a collection"),
        ({**TUNED, "tune_qrels": "qrels.tsv"}, "cannot be chosen on the queries that are reported"),
        (
            {**TUNED, "tune_qrels": None, "tune_split": "test", "qrels": None, "collection": "c"},
            "cannot be chosen on the queries that are reported",
        ),
        ({"tune_split": "train"}, "go with --tune-runs"),
        ({"runs": (), "weights": (1,), "run": "r"}, "--weights and --tune-runs go with --runs"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        job(**settings)
