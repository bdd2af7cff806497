"""MTEB measures a retriever by its own evaluation: a task in memory, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mteb", reason="the extra `mteb` is not installed")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import SearchProtocol

import diffretriever as dr
from diffretriever.collections import Run
from diffretriever.evaluation.measures import evaluate
from diffretriever.integrations.mteb import MtebRetriever

pytestmark = pytest.mark.integrations

CORPUS = [
    {"id": "a b", "title": "Bees", "text": "honey bees store water in winter"},
    {"id": "d2", "title": "", "text": "a river of copper"},
    {"id": "blank", "title": "", "text": " "},
    {"id": "d3", "title": "Winter", "text": ""},
    {"id": "q1", "title": "", "text": "summer water"},
]
QUERIES = [{"id": "q1", "text": "honey in winter"}, {"id": "q2", "text": "copper river"}]
QRELS = {"q1": {"a b": 2, "d3": 1}, "q2": {"d2": 1}}
RANKED = {"q1": ["d2", "d3", "blank"], "q2": ["d2"]}
ABOUT: dict[str, Any] = {
    "description": "A task for tests.",
    "dataset": {"path": "none", "revision": "none"},
    "category": "t2t",
    "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"],
    "main_score": "ndcg_at_10",
    "date": ("2020-01-01", "2020-01-01"),
    "domains": [],
    "task_subtypes": [],
    "license": "cc-by-4.0",
    "annotations_creators": "derived",
    "dialect": [],
    "sample_creation": "found",
    "bibtex_citation": "",
}


class Bees(AbsTaskRetrieval):
    """Retrieval over five texts."""

    metadata = TaskMetadata(name="Bees", type="Retrieval", **ABOUT)
    ranked: Any = None

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        split = {"corpus": Dataset.from_list(CORPUS), "queries": Dataset.from_list(QUERIES)}
        judged = {query: dict(passages) for query, passages in QRELS.items()}
        self.dataset = {"default": {"test": {**split, "relevant_docs": judged, "top_ranked": self.ranked}}}
        self.data_loaded = True


class RankedBees(Bees):
    """Reranking of given texts."""

    metadata = TaskMetadata(name="RankedBees", type="Reranking", **ABOUT)
    ranked = RANKED


@pytest.fixture(scope="module")
def retriever(folder_of: Callable[[str], Path]) -> dr.Retriever:
    return dr.Retriever("diffretriever-llada", backbone=str(folder_of("llada")), budget="q2p3", device="cpu")


def scores_of(model: MtebRetriever, task: Any) -> dict[str, float]:
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    return dict(scores)


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid", "dense+bm25"])
def test_mteb_measures_what_a_search_finds(mode: str, retriever: dr.Retriever, tmp_path: Path) -> None:
    model = MtebRetriever(retriever, mode=mode)
    assert isinstance(model, SearchProtocol)
    found = scores_of(model, Bees())
    documents = [each for each in CORPUS if each["id"] not in ("blank", "a b")] + [{**CORPUS[0], "id": "ab"}]
    index = dr.Index.create(tmp_path / "index", documents, retriever=retriever)
    runs = {q["id"]: {h.id: h.score for h in index.search(q["text"], k=9, mode=mode)} for q in QUERIES}
    judged = {"q1": {"ab": 2, "d3": 1}, "q2": {"d2": 1}}
    ours = evaluate(Run.of(runs), judged, ("nDCG@10", "Recall@1")).mean
    assert found["ndcg_at_10"] == pytest.approx(ours["nDCG@10"], abs=1e-5)
    assert found["recall_at_1"] == pytest.approx(ours["Recall@1"], abs=1e-5)


def test_passages_that_are_given_are_ranked(retriever: dr.Retriever) -> None:
    model = MtebRetriever(retriever, mode="dense")
    assert 0 < scores_of(model, RankedBees())["ndcg_at_10"] <= 1
    queries = Dataset.from_list(QUERIES)
    ranked = model.search(queries, top_k=1, top_ranked=RANKED)
    assert list(ranked) == ["q1", "q2"]
    assert set(ranked["q1"]) <= {"d2", "d3"}
    assert len(ranked["q1"]) == 1
    everything = model.search(queries, top_k=9)
    assert ranked["q2"] == {"d2": everything["q2"]["d2"]}


def test_results_are_filed_under_system_and_fingerprint(retriever: dr.Retriever, tmp_path: Path) -> None:
    about = MtebRetriever(retriever).mteb_model_meta
    assert about.name.startswith("diffretriever/masked-")
    assert about.name.endswith(".q2p3.hybrid")
    assert (about.model_type, about.embed_dim) == (["hybrid"], 32)
    model = MtebRetriever(retriever, mode="dense", folder=tmp_path)
    assert model.mteb_model_meta.model_type == ["late-interaction"]
    assert scores_of(model, Bees()) == scores_of(model, Bees()), "the index is taken up again"
    (index,) = [dr.Index(place) for place in tmp_path.iterdir() if place.is_dir()]
    assert index.location.endswith("Bees-default-test")
    assert index.search("honey").mode == "hybrid"


def test_bm25_and_mistakes() -> None:
    model = MtebRetriever("bm25")
    assert model.mteb_model_meta.name == "diffretriever/bm25.sparse"
    assert scores_of(model, Bees())["ndcg_at_10"] > 0.5
    with pytest.raises(ValueError, match="bm25 has no dense scores: it has sparse, bm25"):
        MtebRetriever("bm25", mode="dense")
    with pytest.raises(ValueError, match="call index first"):
        MtebRetriever("bm25").search(Dataset.from_list(QUERIES), top_k=3)
