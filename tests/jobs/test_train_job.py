"""Training on Ray for real: on an object store, where one of two machines dies, each with a cache of its own.

With --full the driver and all of its Ray have died before; and training on a disk, with DeepSpeed, loses its driver,
then a worker, and what was trained is looked at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from diffretriever.encoders import load_encoder
from diffretriever.files import files_in, is_file, put_folder, read_text
from diffretriever.pipelines.cluster import connect
from diffretriever.pipelines.train import train
from diffretriever.presets import load_retriever
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.training import TrainingManifest, TrainJob
from diffretriever.testing.checkpoints import write_random_checkpoint
from diffretriever.training.data.training_set import MANIFEST_FILE
from diffretriever.training.run_folder import METRICS_FILE
from tests.training.made_up_collection import write_collection, write_training_data

ROOT = Path(__file__).resolve().parents[2]
STEPS = 40
EVERY = 4

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("train")
    (root / "collection").mkdir()
    return {
        "train": str(write_training_data(root, 64)),
        "retriever": "diffretriever-llada",
        "backbone": str(write_random_checkpoint("llada", root / "llada", hidden_size=32)),
        "budget": "q2p3",
        "validation": str(write_collection(root / "collection")),
        "output": str(root / "out"),
        "workers": 2,
        "cpus_per_worker": 0.9,
        "checkpoint_every": EVERY,
        "max_steps": STEPS,
        "batch_queries": 8,
        "queries_per_device": 2,
        "hard_negatives": 2,
        "learning_rate": 0.003,
        "strategy": "deepspeed",
        "temperature": 0.1,
        "ray_address": "local",
    }


def records(output: Path | StorePath) -> list[dict[str, float]]:
    file = output / METRICS_FILE
    return [json.loads(line) for line in read_text(file).splitlines()] if is_file(file) else []


def steps(output: Path | StorePath) -> list[int]:
    return [int(record["step"]) for record in records(output) if "loss" in record]


def wait_for(output: Path | StorePath, step: int, has_ended: Callable[[], bool]) -> None:
    while max(steps(output), default=0) < step:
        assert not has_ended(), f"the job ended before step {step}"
        time.sleep(0.05)


@contextmanager
def killing_a_worker(output: Path, gate: Path, step: int) -> Iterator[None]:
    """Let a worker die before a step of the training inside the block, once the step before it is recorded."""
    ended = threading.Event()
    (gate / str(step)).touch()

    def kill() -> None:
        wait_for(output, step - 1, ended.is_set)
        (gate / f"die-{step}").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        ended.set()
        killer.join()


def killed(flags: dict[str, Any], gate: Path, log: Path, last: int) -> list[int]:
    """Run the job and kill all its processes after a step; return the steps that it has recorded."""
    output = as_place(flags["output"])
    (gate / str(last + 1)).touch()
    arguments = [text for name, value in flags.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    with log.open("w") as stream:
        # A session of its own, so that the process group is the job's alone, Ray's processes included.
        job = subprocess.Popen(
            [sys.executable, str(ROOT / "jobs" / "train.py"), *arguments],
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(output, last, lambda: job.poll() is not None)
            while not is_file(output / "checkpoints" / "checkpoint_manager_snapshot.json"):
                time.sleep(0.05)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    (gate / str(last + 1)).unlink()
    return steps(output)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cluster: None) -> Path:
    """The folder by which workers are held; those of a Ray that begins from here on look into it."""
    monkeypatch.setenv("TRAINING_GATE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("training_gate")), prepend=":")
    return tmp_path


@pytest.fixture
def own_ray(gate: Path) -> Iterator[Callable[[], None]]:
    """Starts a Ray whose workers look into the gate."""
    yield lambda: connect("local", num_cpus=2)
    ray.shutdown()


def test_killed_run_again_and_killed_in_part(
    flags: dict[str, Any], gate: Path, own_ray: Callable[[], None], full: bool
) -> None:
    if not full:
        pytest.skip("takes a minute: --full")
    output = Path(flags["output"])
    before = killed(flags, gate, output.parent / "log", EVERY + 2)
    assert not (output / "adapter").exists()
    assert before == list(range(1, EVERY + 3))

    own_ray()
    config = TrainJob.model_validate(flags)
    with killing_a_worker(output, gate, max(before) + 2 * EVERY):
        manifest = train(config)
    after = steps(output)[len(before) :]
    assert after[0] > 1, "it went on from a checkpoint"
    assert (after[0] - 1) % EVERY == 0
    restarts = [later for earlier, later in pairwise(after) if later != earlier + 1]
    assert len(restarts) == 1, "the dead worker was replaced"
    assert (restarts[0] - 1) % EVERY == 0
    assert after[-1] == manifest.step == manifest.total_steps == STEPS
    assert_improved(output)
    assert_usable(output, manifest)
    assert_refused(config)


def assert_improved(output: Path) -> None:
    losses = {int(record["step"]): record["loss"] for record in records(output) if "loss" in record}
    assert sum(losses[s] for s in range(STEPS - 3, STEPS + 1)) < 0.8 * sum(losses[s] for s in range(1, 5))
    first, *_, last = (record for record in records(output) if "validation/hybrid" in record)
    assert (first["step"], last["step"]) == (0, STEPS)
    assert last["validation/hybrid"] > first["validation/hybrid"] + 0.2
    assert list((output / "tensorboard").iterdir())
    # Three, and those that each kill may have left.
    assert 3 <= len(list((output / "checkpoints").glob("checkpoint_2*"))) <= 5


def assert_usable(output: Path, manifest: TrainingManifest) -> None:
    assert yaml.safe_load((output / "retriever.yaml").read_text())["backbone"]["adapter"] == str(output / "adapter")
    retriever = load_retriever(str(output / "retriever.yaml"))
    assert isinstance(retriever, MaskedRetriever)
    encoder = load_encoder(retriever, "cpu")
    assert encoder.facts.weights != manifest.weights
    assert len(encoder.encode_queries(["honey water"]).vectors_MH) == 2


def assert_refused(config: TrainJob) -> None:
    assert isinstance(config.output, Path)
    metrics = config.output / METRICS_FILE
    written = metrics.stat().st_mtime_ns
    assert train(config).step == STEPS
    assert metrics.stat().st_mtime_ns == written, "what is finished is not done again"
    other = config.model_copy(update={"learning_rate": 0.02, "seed": 1})
    with pytest.raises(ValueError, match=r"recipe\.learning_rate: 0\.003 != 0\.02\n  recipe\.seed: 42 != 1"):
        train(other)
    with pytest.raises(ValueError, match="no collection 'nowhere'"):
        train(config.model_copy(update={"validation": "nowhere"}))
    with pytest.raises(ValueError, match="no room for 8 workers"):
        train(config.model_copy(update={"workers": 8}))


@pytest.fixture
def machines(gate: Path, bucket: str, tmp_path: Path) -> Iterator[Callable[[], Machines]]:
    """Starts a Ray whose head, where the driver is, has no CPUs, and no machine beside it yet."""
    started: list[Machines] = []

    def start() -> Machines:
        started.append(Machines(tmp_path))
        return started[0]

    yield start
    ray.shutdown()
    for each in started:
        each.cluster.shutdown()


class Machines:
    """Machines of one CPU, each with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        connect(self.cluster.address)

    def add(self, name: str) -> Any:
        return self.cluster.add_node(num_cpus=1, env_vars={"DIFFRETRIEVER_CACHE": str(self.folder / name)})

    def kill(self, machine: Any) -> None:
        self.cluster.remove_node(machine, allow_graceful=False)

    def copies(self, name: str) -> list[str]:
        """The training sets that a machine has fetched."""
        return [copy.name for copy in (self.folder / name / "training-sets").iterdir() if copy.is_dir()]


def test_on_a_store_a_machine_dies(
    flags: dict[str, Any],
    bucket: str,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machines: Callable[[], Machines],
    full: bool,
) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "driver"))
    output, given = StorePath(f"{bucket}/out"), StorePath(f"{bucket}/set")
    put_folder(Path(flags["train"]), given, last=MANIFEST_FILE)
    flags = flags | {"train": str(given), "output": str(output), "checkpoint_every": 2, "max_steps": 12}
    del flags["validation"]
    before = killed(flags, gate, tmp_path / "log", 4) if full else []
    assert before == [1, 2, 3, 4][: len(before)]

    cluster = machines()
    cluster.add("first")
    dying = cluster.add("second")
    (gate / "9").touch()
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, TrainJob.model_validate(flags))
        wait_for(output, 8, training.done)
        cluster.kill(dying)
        (gate / "9").unlink()
        cluster.add("third")
        manifest = training.result()
    assert manifest.step == manifest.total_steps == 12
    after = steps(output)[len(before) :]
    assert after[0] in ((3, 5) if full else (1,)), "it went on from a checkpoint of a driver that is dead"
    restarts = [later for earlier, later in pairwise(after) if later != earlier + 1]
    assert restarts in ([], [5], [7]), "and from one of its own when the machine died, which may be that of step 8"
    assert after[-1] == 12
    for name in ("first", "second", "third"):
        assert cluster.copies(name) == [manifest.data]
    assert {file.base_name for file in files_in(output / "adapter")} >= {"adapter_model.safetensors", "training.json"}
    assert not Path("s3:").exists()
    config = TrainJob.model_validate(flags)
    assert train(config) == manifest, "what is finished is not done again"
    with pytest.raises(ValueError, match=r"recipe\.seed: 42 != 1"):
        train(config.model_copy(update={"seed": 1}))
