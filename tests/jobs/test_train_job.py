"""Training on Ray for real: on an object store, where one of two machines dies, each with a cache of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import ray
from ray.cluster_utils import Cluster

from diffretriever.core.files import is_file, put_folder, read_text
from diffretriever.encoders import load_encoder
from diffretriever.pipelines.cluster import connect
from diffretriever.pipelines.train import train
from diffretriever.presets import load_retriever
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.training import TrainJob
from diffretriever.testing.checkpoints import write_random_checkpoint
from diffretriever.training.data.training_set import MANIFEST_FILE
from diffretriever.training.run_folder import METRICS_FILE, RunFolder
from tests.training.made_up_collection import write_collection, write_training_data

STEPS, EVERY = 20, 4

pytestmark = pytest.mark.cluster


@pytest.fixture
def job(bucket: str, tmp_path: Path) -> TrainJob:
    (tmp_path / "collection").mkdir()
    given = StorePath(f"{bucket}/set")
    put_folder(write_training_data(tmp_path, 64), given, last=MANIFEST_FILE)
    return TrainJob.model_validate(
        {
            "train": str(given),
            "retriever": "diffretriever-llada",
            "backbone": str(write_random_checkpoint("llada", tmp_path / "llada", hidden_size=32)),
            "budget": "q2p3",
            "validation": str(write_collection(tmp_path / "collection")),
            "output": f"{bucket}/out",
            "workers": 2,
            "cpus_per_worker": 0.9,
            "checkpoint_every": EVERY,
            "max_steps": STEPS,
            "batch_queries": 8,
            "queries_per_device": 2,
            "hard_negatives": 2,
            "learning_rate": 0.003,
            "temperature": 0.1,
        }
    )


class Machines:
    """Machines of one CPU, each with a cache of its own, beside a head without CPUs, where the driver is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        connect(self.cluster.address)

    def add(self, name: str) -> Any:
        return self.cluster.add_node(num_cpus=1, env_vars={"DIFFRETRIEVER_CACHE": str(self.folder / name)})

    def copies(self, name: str) -> list[Path]:
        """The training sets that a machine has fetched."""
        return list((self.folder / name / "fetched").glob("*/examples.arrow"))


@pytest.fixture
def machines(no_cluster: None, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "driver"))
    started = Machines(tmp_path)
    yield started
    ray.shutdown()
    started.cluster.shutdown()


def records(output: StorePath) -> list[dict[str, float]]:
    file = output / METRICS_FILE
    return [json.loads(line) for line in read_text(file).splitlines()] if is_file(file) else []


def steps(output: StorePath) -> list[int]:
    return [int(record["step"]) for record in records(output) if "loss" in record]


def wait_for(output: StorePath, step: int, training: Future[Any]) -> None:
    while max(steps(output), default=0) < step:
        assert not training.done(), training.result()
        time.sleep(0.05)


class KilledError(Exception):
    """Where the driver would have been killed."""


def test_training_on_a_store_survives_a_killed_node(job: TrainJob, machines: Machines) -> None:
    output = job.output
    assert isinstance(output, StorePath)
    machines.add("first")
    dying = machines.add("second")
    with patch.object(RunFolder, "finish", side_effect=KilledError), ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, job)
        wait_for(output, 2 * EVERY, training)
        machines.cluster.remove_node(dying, allow_graceful=False)
        machines.add("third")
        with pytest.raises(KilledError):
            training.result()
    done = steps(output)
    assert (done[0], done[-1]) == (1, STEPS)
    restarts = [later for earlier, later in pairwise(done) if later != earlier + 1]
    # The last steps may be done before the machine is gone.
    assert len(restarts) <= 1, "the dead worker was replaced"
    assert all((step - 1) % EVERY == 0 for step in restarts), "and went on from a checkpoint"

    manifest = train(job)
    assert steps(output) == done, "the same job takes what the killed one has saved"
    assert manifest.step == manifest.total_steps == STEPS
    for name in ("first", "second", *["third"] * len(restarts)):
        assert len(machines.copies(name)) == 1
    validated = [record["step"] for record in records(output) if "validation/hybrid" in record]
    assert (validated[0], validated[-1]) == (0, STEPS)
    retriever = load_retriever(str(output / "retriever.yaml"))
    assert isinstance(retriever, MaskedRetriever)
    assert load_encoder(retriever, "cpu").facts.weights != manifest.weights

    assert train(job) == manifest, "what is finished is not done again"
    with pytest.raises(ValueError, match=r"recipe\.learning_rate: 0\.003 != 0\.02\n  recipe\.seed: 42 != 1"):
        train(job.model_copy(update={"learning_rate": 0.02, "seed": 1}))
    with pytest.raises(ValueError, match="no collection 'nowhere'"):
        train(job.model_copy(update={"validation": "nowhere"}))
    with pytest.raises(ValueError, match="no room for 8 workers"):
        train(job.model_copy(update={"workers": 8}))
