"""A small corpus, a tiny random checkpoint and a Ray session, shared by the pipeline's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from diffretriever.backbones.random_checkpoints import write_random_checkpoint
from diffretriever.pipelines.cluster import python_path
from schemas.jobs import EncodeJob

WORDS = "slot passage query index vector masked corpus budget shard actor lance table commit".split()


def line(number: int, text: str | None = None) -> str:
    """Return one corpus line; texts differ in length so that batches are padded."""
    words = [WORDS[(number * 7 + i) % len(WORDS)] for i in range(5 + number % 40)]
    return json.dumps({"_id": f"p{number}", "title": f"title {number}", "text": text or " ".join(words)})


def write_corpus(folder: Path, lines: list[str]) -> Path:
    """Write a BEIR folder without queries."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "masked slot"}\n', encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaDA in its original format."""
    return write_random_checkpoint("llada", tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local Ray of two CPUs for this module."""
    environment = {"env_vars": {"PYTHONPATH": python_path()}}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


JobMaker = Callable[..., EncodeJob]


@pytest.fixture
def make_job(tmp_path: Path, checkpoint: Path) -> JobMaker:
    """Jobs with one encoder over the random checkpoint and small blocks."""

    def make(collection: Path, **changes: object) -> EncodeJob:
        values = {
            "collection": str(collection),
            "index": str(tmp_path / "index"),
            "retriever": "diffretriever-llada",
            "backbone": str(checkpoint),
            "encoders": 1,
            "rows_per_block": 16,
        }
        return EncodeJob.model_validate({**values, **changes})

    return make
