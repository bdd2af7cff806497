"""Adaptive K_q in a search and in an evaluation."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path

import pytest

from diffretriever.collections import read_run
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.search import SearchJob, SearchOptions
from diffretriever.schemas.selector import FittedFeature, LearnedSelectorArtefact
from diffretriever.schemas.sweep import encoder_fingerprint
from diffretriever.search import open_searcher
from diffretriever.search.searcher import Searcher
from diffretriever.search.selecting import BudgetChooser
from tests.locations import local
from tests.search.conftest import PASSAGES, QUERIES

ROOT = Path(__file__).resolve().parents[2]


def chooser(searcher: Searcher, source: str) -> BudgetChooser:
    return BudgetChooser(source, searcher.index, searcher.preparer)


@pytest.fixture
def artefact(index: PassageIndex, tmp_path: Path) -> Path:
    """Chooses 3 for long queries and 1 for short ones: the border lies at the centre."""
    learned = LearnedSelectorArtefact(
        fingerprint=encoder_fingerprint(index.manifest),
        retriever=index.manifest.title,
        collections=("c/train",),
        mode="dense",
        measure="nDCG@10",
        passage_budget=4,
        queries=10,
        created="2026-01-01T00:00:00+00:00",
        command="made by hand",
        cost=0,
        penalty=1,
        budgets=(1, 3),
        features=(FittedFeature(name="length", low=0, high=100, centre=12.5, scale=1),),
        intercepts=(0.5, 0.5),
        coefficients=((-1.0,), (1.0,)),
    )
    path = tmp_path / "selector.json"
    path.write_text(learned.model_dump_json(), "utf-8")
    return path


@pytest.fixture
def job(index: PassageIndex, artefact: Path, tmp_path: Path) -> EvaluateJob:
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    rows = [json.dumps({"_id": p.id, "title": p.title, "text": p.text}) for p in PASSAGES]
    (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    rows = [json.dumps({"_id": f"q{number}", "text": text}) for number, text in enumerate(QUERIES)]
    (folder / "queries.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    judged = [f"q{number}\td{number}\t1" for number in range(len(QUERIES))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n", "utf-8")
    return EvaluateJob(
        index=index.uri, collection=str(folder), output=tmp_path / "out", top_k=20, selector=str(artefact)
    )


def query_lengths(index: PassageIndex) -> list[int]:
    searcher = open_searcher(index.uri)
    assert searcher.encoder is not None
    tokenizer = searcher.encoder.preparer.vocabulary.tokenizer
    return [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in QUERIES]


def expected_budgets(index: PassageIndex) -> list[int]:
    return [3 if length > 12.5 else 1 for length in query_lengths(index)]


def test_an_evaluation_encodes_queries_with_the_chosen_budgets(index: PassageIndex, job: EvaluateJob) -> None:
    budgets = expected_budgets(index)
    assert set(budgets) == {1, 3}, "the queries are short and long ones"
    evaluate_job(job, "python jobs/evaluate.py")
    found = open_searcher(index.uri).search(QUERIES, k=20, budgets=budgets)
    for mode, hits in found.items():
        run = read_run(job.output / f"{mode}.trec")
        assert run == {f"q{number}": dict(each) for number, each in enumerate(hits) if each}
    assert ".q-learned-0-p4.dense\n" in (local(job.output) / "dense.trec").read_text()
    page = (local(job.output) / "report.md").read_text("utf-8")
    assert f"| selector | learned λ=0: mean K_q {sum(budgets) / len(budgets):.2f} (1 for " in page


def test_a_search_prints_the_chosen_budget_and_its_features(
    index: PassageIndex, artefact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    job = {"index": index.uri, "query": QUERIES[3], "selector": str(artefact), "mode": "dense", "top_k": 5}
    runpy.run_path(str(ROOT / "jobs" / "search.py"))["main"](SearchJob.model_validate({**job, "json_output": True}))
    done = capsys.readouterr()
    budgets, length = expected_budgets(index), query_lengths(index)[3]
    assert f"K_q = {budgets[3]}, chosen of 1, 3 by learned λ=0: length {length}\n" in done.err
    hits = open_searcher(index.uri).search([QUERIES[3]], k=5, modes=["dense"], budgets=[budgets[3]])["dense"][0]
    assert [(row["id"], row["score"]) for row in json.loads(done.out)] == hits


def test_a_selector_can_use_document_frequencies(index: PassageIndex, artefact: Path) -> None:
    artefact.write_text(artefact.read_text("utf-8").replace('"length"', '"max_idf"'), "utf-8")
    (choice,) = chooser(open_searcher(index.uri), str(artefact)).choose([QUERIES[0]])
    texts = [f"{passage.title} {passage.text}".lower() for passage in PASSAGES]
    words = set(re.findall(r"[a-z0-9]+", QUERIES[0].lower()))
    holding = min(sum(word in re.findall(r"[a-z0-9]+", text) for text in texts) for word in words)
    assert choice.features == {"max_idf": pytest.approx(math.log2((len(texts) + 1) / (holding + 1)))}


def test_a_selector_with_features_of_encoded_queries_is_rejected(index: PassageIndex, artefact: Path) -> None:
    artefact.write_text(artefact.read_text("utf-8").replace('"length"', '"confidence"'), "utf-8")
    with pytest.raises(ValueError, match="known only after encoding"):
        chooser(open_searcher(index.uri), str(artefact))


def test_errors_of_selectors_name_the_fix(
    index: PassageIndex, bm25_index: PassageIndex, artefact: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="the bm25 method has no query budget: leave --selector out"):
        chooser(open_searcher(bm25_index.uri), "rule")
    searcher = open_searcher(index.uri, SearchOptions(index=index.uri))
    other = artefact.read_text("utf-8").replace(encoder_fingerprint(index.manifest), "0123456789abcdef")
    artefact.write_text(other, "utf-8")
    with pytest.raises(
        ValueError, match=r"fitted for encoder 0123456789abcdef.*but " + encoder_fingerprint(index.manifest)
    ):
        chooser(searcher, str(artefact))
    with pytest.raises(ValueError, match="--query-budget or --selector, not both"):
        SearchJob(index="i", query="q", query_budget=2, selector="rule")
    with pytest.raises(ValueError, match="--selector needs --index"):
        EvaluateJob(runs=("r",), qrels=tmp_path / "q", output=tmp_path, selector="rule")
