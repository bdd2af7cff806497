"""A small corpus, a tiny random checkpoint and a Ray session, shared by the pipeline's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from diffretriever.backbones.random_checkpoints import write_random_checkpoint
from diffretriever.pipelines.cluster import python_path
from schemas.jobs import EncodeJob
from tests.pipelines.corpora import JobMaker


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
