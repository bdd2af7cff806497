"""A tiny collection, jobs over it, and a machine whose hub cache is empty."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.pipelines.corpora import line
from tests.studies.reproduction.cases import JobMaker, make_job

LLADA = "GSAI-ML/LLaDA-8B-Instruct"
N_PASSAGES = 24


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of collections with one, `scifact`: one of its passages is empty, one query has its passage's id."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "scifact" / "qrels").mkdir(parents=True)
    lines = [*(line(i) for i in range(N_PASSAGES)), '{"_id": "empty", "title": "", "text": ""}']
    (folder / "scifact" / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    texts = {"q1": "masked slot", "q2": "lance table commit", "p5": "vector index shard", "q4": "budget of a query"}
    queries = [json.dumps({"_id": query, "text": text}) for query, text in texts.items()]
    (folder / "scifact" / "queries.jsonl").write_text("\n".join(queries) + "\n")
    judged = ["q1\tp3\t1", "q1\tp4\t2", "q2\tp9\t1", "p5\tp5\t1", "p5\tp7\t1", "q4\tp11\t1"]
    (folder / "scifact" / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and an empty cache of downloads."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "downloads"))
    return tmp_path / "hub"


@pytest.fixture
def job(tmp_path: Path, root: Path, hub_cache: Path) -> JobMaker:
    """Jobs over the collection."""
    return make_job(tmp_path / "output", root)
