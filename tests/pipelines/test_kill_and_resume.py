"""`kill -9`, SIGTERM, and the same command again: every passage once, none twice, none lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import ray

from diffretriever.index.table import PassageIndex
from tests.pipelines.corpora import line, write_corpus

ROOT = Path(__file__).resolve().parents[2]
N = 448
ROWS_PER_BLOCK = 32
COMMITS = 5
"""Of dying_driver.py."""
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("warm")]


def rows(index: Path) -> int:
    return len(PassageIndex.open(str(index))) if PassageIndex.exists(str(index)) else -1


def test_a_killed_and_a_terminated_job_resume(checkpoint: Path, tmp_path: Path, cluster: None) -> None:
    """A job that is killed with its Ray leaves five blocks, a job that is terminated some more, the third the rest."""
    index, log = tmp_path / "index", tmp_path / "log"
    corpus = write_corpus(tmp_path / "corpus", [line(i, f"passage {i} " + "text " * 60) for i in range(N)])
    flags = ["--collection", corpus, "--index", index, "--retriever", "diffretriever-llada", "--backbone", checkpoint]
    flags += ["--encoders", 1, "--rows-per-block", ROWS_PER_BLOCK]
    dying = ["python", Path(__file__).with_name("dying_driver.py"), *flags]
    # A session of its own, so that the process group is the job's alone. Its output goes to a file: what outlives
    # the driver for some seconds would hold a pipe open.
    with log.open("w") as stream:
        killed = subprocess.run(
            list(map(str, dying)),
            stdout=stream,
            stderr=stream,
            env={**os.environ, "RAY_ADDRESS": "local"},
            start_new_session=True,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, log.read_text()
    assert rows(index) == COMMITS * ROWS_PER_BLOCK

    # A Ray that outlives the job starts sooner than one of its own.
    running = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    command = list(map(str, ["python", ROOT / "jobs" / "encode_beir.py", *flags]))
    with log.open("w") as stream:
        job = subprocess.Popen(command, stdout=stream, stderr=stream, env=running)
    while rows(index) <= COMMITS * ROWS_PER_BLOCK:
        assert job.poll() is None, log.read_text()
        time.sleep(0.05)
    job.terminate()
    assert job.wait() == 128 + signal.SIGTERM
    assert log.read_text().endswith("terminated: committed work is safe; run the same command to resume\n")

    committed = rows(index)
    again = subprocess.run(command, capture_output=True, env=running, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"{N - committed:,} encoded now" in again.stdout
    ids = [i for batch in PassageIndex.open(str(index)).batches(["id"], 1000) for i in batch.column("id").to_pylist()]
    assert sorted(ids) == sorted(f"p{i}" for i in range(N))
