"""A tiny collection, jobs over it, and a machine whose hub cache is empty."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from diffretriever.collections import Passage, open_collection
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import MaskedRetriever
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
def encoder(checkpoint: Path) -> Encoder:
    """LLaDA with random weights."""
    config = load_retriever("diffretriever-llada", str(checkpoint))
    assert isinstance(config, MaskedRetriever)
    place = config.backbone.model_copy(update={"dtype": "float32"})
    return load_encoder(config.model_copy(update={"backbone": place}), "cpu")


@pytest.fixture
def index(tmp_path: Path, root: Path, encoder: Encoder) -> PassageIndex:
    """The passages of `scifact` in one part."""
    passages = [record for record in open_collection(str(root / "scifact")).records() if isinstance(record, Passage)]
    represented = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
    made = PassageIndex.create(str(tmp_path / "index"), manifest_of(encoder))
    block = join_columns(text_table(passages, "scifact"), represented.to_arrow())
    Committer(made).commit({"all": write_block(made.uri, block)}, [])
    return made


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
