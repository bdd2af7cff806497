"""`kill -9` at several moments, then the same command again: every passage once, none twice, none lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffretriever.index.table import PassageIndex
from tests.pipelines.corpora import line, write_corpus

ROOT = Path(__file__).resolve().parents[2]
N = 480
PATIENCE_SECONDS = 120

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), [line(i, f"passage {i} " + "text " * 60) for i in range(N)])


def command(corpus: Path, checkpoint: Path, index: Path) -> list[str]:
    options = {
        "--collection": corpus,
        "--index": index,
        "--retriever": "diffretriever-llada",
        "--backbone": checkpoint,
        "--encoders": 1,
        "--rows-per-block": 32,
        "--ray-address": "local",
    }
    flags = [str(part) for pair in options.items() for part in pair]
    return [sys.executable, str(ROOT / "jobs" / "encode_beir.py"), *flags]


def rows(index: Path) -> int:
    return len(PassageIndex.open(str(index))) if PassageIndex.exists(str(index)) else -1


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the index is made": lambda index: rows(index) >= 0,
    "the first commit": lambda index: rows(index) > 0,
    "the middle": lambda index: rows(index) > N // 2,
}


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("driver", "the index is made"),
        ("machine", "the first commit"),
        ("driver", "the middle"),
    ],
)
def test_killed_and_run_again(victim: str, moment: str, corpus: Path, checkpoint: Path, tmp_path: Path) -> None:
    index, log = tmp_path / "index", tmp_path / "log"
    with log.open("w") as stream:
        # A session of its own, so that the whole process group can die at once, as a machine does.
        job = subprocess.Popen(
            command(corpus, checkpoint, index), stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not MOMENTS[moment](index):
        assert job.poll() is None, f"the job ended before {moment}:\n{log.read_text()}"
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    if victim == "driver":
        job.kill()
    else:
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    committed = rows(index)
    assert committed < N, "the job was over before it could be killed"

    again = subprocess.run(command(corpus, checkpoint, index), capture_output=True, text=True, check=False, timeout=300)
    assert again.returncode == 0, again.stderr
    assert f"{N - committed:,} encoded now" in again.stdout
    stored = PassageIndex.open(str(index))
    ids = [i for batch in stored.batches(["id"], 1000) for i in batch.column("id").to_pylist()]
    assert len(ids) == N
    assert set(ids) == {f"p{i}" for i in range(N)}


def test_a_job_killed_between_writing_and_committing_loses_nothing(
    corpus: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """The narrowest moment: fragments are written, their receipts delivered, the commit not yet made."""
    index = tmp_path / "index"
    script = (
        "import os, sys; sys.path[:0] = [{jobs!r}]; sys.argv = {argv!r}\n"
        "import _entry, encode_beir\n"
        "from diffretriever.index.writer import Committer\n"
        "Committer.commit = lambda *_: os.kill(os.getpid(), 9)\n"
        "_entry.run(encode_beir.EncodeJob, encode_beir.main)\n"
    )
    argv = command(corpus, checkpoint, index)[1:]
    source = script.format(jobs=str(ROOT / "jobs"), argv=argv)
    killed = subprocess.run([sys.executable, "-c", source], capture_output=True, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert rows(index) == 0
    again = subprocess.run(command(corpus, checkpoint, index), capture_output=True, text=True, check=False, timeout=300)
    assert again.returncode == 0, again.stderr
    assert len(PassageIndex.open(str(index)).digests()) == N == rows(index)
