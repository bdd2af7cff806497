"""`kill -9` at several moments, then the same command again: every passage once, none twice, none lost."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from diffretriever.index.table import PassageIndex
from tests.pipelines.corpora import line, write_corpus

ROOT = Path(__file__).resolve().parents[2]
N = 448
ROWS_PER_BLOCK = 32
DEATHS = [
    ("machine", "in the middle", 5),
]
"""Who dies when, and after how many commits of its own; moments as in dying_driver.py."""
MORE_DEATHS = [
    ("driver", "once the index is made", 0),
    ("machine", "after the first commit", 1),
    ("driver", "before the first commit", 0),
]
"""With --full, before these. Every job has a Ray of its own then; else only that which takes its Ray along."""

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("warm")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), [line(i, f"passage {i} " + "text " * 60) for i in range(N)])


@pytest.fixture(scope="module")
def running(cluster: None) -> str:
    """The address of a Ray that outlives the job, which starts sooner than one of its own."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def command(corpus: Path, checkpoint: Path, index: Path, address: str) -> list[str]:
    options = {
        "--collection": corpus,
        "--index": index,
        "--retriever": "diffretriever-llada",
        "--backbone": checkpoint,
        "--encoders": 1,
        "--rows-per-block": ROWS_PER_BLOCK,
        "--ray-address": address,
    }
    flags = [str(part) for pair in options.items() for part in pair]
    return ["python", str(ROOT / "jobs" / "encode_beir.py"), *flags]


def rows(index: Path) -> int:
    return len(PassageIndex.open(str(index))) if PassageIndex.exists(str(index)) else -1


def test_killed_again_and_again(
    corpus: Path, checkpoint: Path, tmp_path: Path, full: bool, request: pytest.FixtureRequest
) -> None:
    """Each death finds the index as the one before left it; the last is told to end, wherever workers are."""
    index, log = tmp_path / "index", tmp_path / "log"
    alone = command(corpus, checkpoint, index, "local")
    again = alone if full else command(corpus, checkpoint, index, request.getfixturevalue("running"))
    committed = 0
    for victim, moment, commits in [*MORE_DEATHS * full, *DEATHS]:
        die(alone if victim == "machine" else again, victim, moment, log)
        committed += commits
        assert rows(index) == committed * ROWS_PER_BLOCK, moment
    with log.open("w") as stream:
        job = subprocess.Popen(again, stdout=stream, stderr=subprocess.STDOUT)
    while rows(index) <= committed * ROWS_PER_BLOCK:
        assert job.poll() is None, log.read_text()
        time.sleep(0.05)
    job.terminate()
    assert job.wait() == 128 + signal.SIGTERM
    assert log.read_text().endswith("told to end: what was committed is safe, the same command goes on from there\n")
    finish(again, index)


def die(flags: list[str], victim: str, moment: str, log: Path) -> None:
    """Run the job until it dies."""
    dying = ["python", str(Path(__file__).with_name("dying_driver.py")), victim, moment, *flags[2:]]
    # A session of its own, so that the process group is the job's alone. Its output goes to a file: what outlives
    # the driver for some seconds would hold a pipe open.
    with log.open("w") as stream:
        killed = subprocess.run(dying, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True, check=False)
    assert killed.returncode == -signal.SIGKILL, log.read_text()


def finish(command: list[str], index: Path) -> None:
    """Run the same command again: it encodes what is missing and nothing else."""
    committed = rows(index)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"{N - committed:,} encoded now" in again.stdout
    stored = PassageIndex.open(str(index))
    ids = [i for batch in stored.batches(["id"], 1000) for i in batch.column("id").to_pylist()]
    assert len(ids) == N
    assert set(ids) == {f"p{i}" for i in range(N)}
