"""Training sets: prepared on Ray as in one process, and resumed after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from ray import get_runtime_context

from diffretriever.pipelines.training_data import QUARANTINE_FILE, prepare_training
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.data import sources as raw_records
from diffretriever.training.data.training_set import EXAMPLES_FILE, TrainingSet
from tests.training.example_cases import examples, jsonl, prepared, tevatron, write_beir

ROOT = Path(__file__).resolve().parents[2]
MADE = examples(600)

pytestmark = pytest.mark.cluster


@pytest.fixture
def job(tmp_path: Path) -> PrepareTrainingJob:
    """Two sources, bad records and held-out texts."""
    lines = jsonl(map(tevatron, MADE)).splitlines(keepends=True)
    (tmp_path / "one.jsonl").write_text("".join([*lines[:300], "{\n", *lines[300:]]), "utf-8")
    beir = write_beir(tmp_path / "two", MADE[:40])
    held = write_beir(tmp_path / "held", MADE[100:110], "test")
    return PrepareTrainingJob(
        source=(str(tmp_path / "one.jsonl"), str(beir)),
        hold_out=(str(held),),
        output=tmp_path / "out",
        on_bad_input="quarantine",
    )


@pytest.mark.usefixtures("cluster")
def test_ray_prepares_the_same_set_as_one_process(job: PrepareTrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_records, "_PIECE_RECORDS", 70)
    alone = prepared(job.model_copy(update={"output": job.output.with_name("alone")}))
    manifest = prepare_training(job)
    made = TrainingSet.open(job.output)
    assert made.digest == alone.digest
    assert made.manifest == manifest
    assert manifest.sources == alone.manifest.sources
    assert manifest.counts.bad_records == 1
    assert manifest.counts.held_out_examples >= 10
    assert manifest.counts.repeated_examples == 0, "without their negatives they are other examples"
    assert [made.example(row) for row in range(len(made))] == [alone.example(row) for row in range(len(alone))]
    assert (made.folder / QUARANTINE_FILE).read_bytes() == (alone.folder / QUARANTINE_FILE).read_bytes()
    assert prepare_training(job) == manifest, "done already"


@pytest.mark.usefixtures("cluster")
def test_a_killed_preparation_cannot_be_opened_and_is_redone(tmp_path: Path) -> None:
    """`kill -9` by itself once examples are on disk."""
    (tmp_path / "x.jsonl").write_text(jsonl(map(tevatron, MADE)), "utf-8")
    ray = get_runtime_context().gcs_address
    flags = ["--source", tmp_path / "x.jsonl", "--output", tmp_path / "out"]
    environment = {**os.environ, "RAY_ADDRESS": ray}
    dying = tmp_path / "dying.py"
    dying.write_text(
        "import os, signal, sys; from unittest import mock\n"
        f"sys.path.insert(0, {str(ROOT / 'jobs')!r}); import _entry, prepare_training\n"
        "from diffretriever.training.data.training_set_writer import TrainingSetWriter as W\n"
        "add = W.add\n"
        "def die(self, block):\n"
        "    add(self, block); self._open_files.close(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "mock.patch.object(W, 'add', die).start()\n"
        "_entry.run(prepare_training.PrepareTrainingJob, prepare_training.main)"
    )
    with (tmp_path / "log").open("w") as log:
        command = ["python", str(dying), *map(str, flags)]
        killed = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert (tmp_path / "out" / EXAMPLES_FILE).stat().st_size > 1000
    with pytest.raises(ValueError, match="incomplete"):
        TrainingSet.open(tmp_path / "out")
    command = ["python", str(ROOT / "jobs" / "prepare_training.py"), *map(str, flags)]
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = TrainingSet.open(tmp_path / "out")
    assert [made.example(row) for row in (0, 599)] == [MADE[0], MADE[599]]
    assert "600 examples" in done.stdout
    assert made.digest in done.stdout
