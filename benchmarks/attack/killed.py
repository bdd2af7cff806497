"""Encoding, killed and started again until it ends: the same ids, texts, vectors and impacts, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import yaml

from benchmarks.attack.base import TRACEBACK, Attack, Round
from benchmarks.attack.processes import everybody, kill_since, names, since, wait_for_none
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever
from diffretriever.schemas.index import ROW_CHECKSUM
from diffretriever.search.inspection import inspect
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.pipelines.corpora import line, write_corpus

MOST_KILLS = 3
PASSAGES = 400
_ROWS_PER_BLOCK = 16
_PYTHON = "python"
_END_S = 300.0
"""For a job to notice that a part of Ray is dead."""
_LIMIT_S = 900.0
_LEFT_S = 180.0
"""For what Ray has started to see that its job is gone, on a machine that is busy as well."""
_TOLD_TO_END = "terminated: "


def _by_name(*wanted: str) -> Callable[[int, list[psutil.Process]], list[psutil.Process]]:
    def chosen(_: int, processes: list[psutil.Process]) -> list[psutil.Process]:
        return [process for process in processes if any(_title(process).startswith(name) for name in wanted)]

    return chosen


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        title = " ".join(process.cmdline())
        return title if title.startswith("ray::") else str(process.name())
    return ""


_UNASKED = (0, -signal.SIGTERM)
"""Of a job told to end that had done its work, and of Python itself before a job begins or after it has ended."""
_RAYS_OWN = {
    "ray::DashboardAgent": "tells the dead head for a minute that its raylet is dead",
    "ray::RuntimeEnvAgent": "the same",
    "gcs_server": "ends when it sees that it serves nobody",
}
"""What Ray may leave for a while, none of which holds or writes anything of ours → why it is there."""


def _may_be_left(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return any(name in line for name in _RAYS_OWN)
    return True


VICTIMS: dict[str, Callable[[int, list[psutil.Process]], list[psutil.Process]]] = {
    "driver": lambda driver, processes: [process for process in processes if process.pid == driver],
    "everything": lambda _, processes: processes,
    "worker": _by_name("ray::"),
    "raylet": _by_name("raylet"),
    "head": _by_name("gcs_server"),
    "driver told to end": lambda driver, processes: [process for process in processes if process.pid == driver],
}
"""Who of a job's processes is killed, given the driver's number."""


class EncodeAttack(Attack):
    """Kill `jobs/encode_beir.py` again and again, and compare its index with that of an undisturbed job."""

    name = "encode"

    def round(self, given: Round) -> None:
        """Kill it up to `MOST_KILLS` times, each time give the same command at once, and let it end."""
        before = everybody()
        self._until_its_end(given)
        if left := wait_for_none(before, _LEFT_S, _may_be_left):
            given.found(f"{_LEFT_S:g} s after the last job processes are left: {names(left)}")
        given.did("processes of Ray alone ended after the round", kill_since(before))

    def _until_its_end(self, given: Round) -> None:
        inputs = given.once(self.name, lambda folder: self._reference(given, folder))
        seconds = float((inputs / "seconds").read_text())
        output = given.folder / "output"
        for number in range(given.rng.randint(1, MOST_KILLS)):
            victim = given.rng.choice(list(VICTIMS))
            delay = given.rng.random() * seconds
            given.log(f"kill {number}: {victim} after {delay:.2f} s of {seconds:.2f}")
            job = Job(given, _flags(inputs, output), f"kill-{number}")
            job.kill(victim, delay)
        job = Job(given, _flags(inputs, output), "last")
        status = job.wait(_LIMIT_S)
        if status != 0:
            given.found(f"the same command again ended with status {status}:\n{job.last_lines()}")
            return
        different = _difference(inputs / "reference", output)
        if different is not None:
            given.found(f"the result differs from that of an undisturbed job: {different}")
        given.did("resumed to its end")

    def _reference(self, given: Round, folder: Path) -> None:
        _prepare(folder)
        start = time.monotonic()
        job = Job(given, _flags(folder, folder / "reference"), "reference")
        if job.wait(_LIMIT_S) != 0:
            raise RuntimeError(f"the undisturbed job failed:\n{job.last_lines()}")
        (folder / "seconds").write_text(str(time.monotonic() - start))


def _prepare(folder: Path) -> None:
    """Write a corpus and a random model."""
    write_corpus(folder / "corpus", [line(number) for number in range(PASSAGES)])
    place = write_random_checkpoint("llada", folder / "llada", hidden_size=64)
    retriever = load_retriever("diffretriever-llada", str(place)).model_dump(mode="json")
    # On a busy machine, the probe of `auto` may choose another precision.
    retriever["backbone"]["dtype"] = "float32"
    (folder / "retriever.yaml").write_text(yaml.safe_dump(retriever), "utf-8")


def _flags(inputs: Path, output: Path) -> list[str]:
    """Encode the corpus with one encoder, on a Ray of the job's own."""
    options = {
        "--collection": inputs / "corpus",
        "--index": output,
        "--retriever": inputs / "retriever.yaml",
        "--encoders": 1,
        "--rows-per-block": _ROWS_PER_BLOCK,
    }
    return [str(part) for pair in options.items() for part in pair]


def _difference(expected: Path, output: Path) -> str | None:
    """Compare all columns of both tables, passages by id, and verify what was resumed."""
    ours, theirs = _rows(output), _rows(expected)
    ids = [table.column("id").to_pylist() for table in (ours, theirs)]
    if ids[0] != ids[1]:
        return f"{len(ids[0])} passages, {len(set(ids[0]))} ids, in place of {len(ids[1])}"
    wrong = [name for name in theirs.schema.names if not ours.column(name).equals(theirs.column(name))]
    if wrong:
        return f"columns {', '.join(wrong)}"
    verification = inspect(PassageIndex.open(str(output)), check=True).verification
    assert verification is not None
    return "; ".join(f"--verify: {p.kind}: {p.first}" for p in verification.problems) or None


def _rows(folder: Path) -> pa.Table:
    table = PassageIndex.open(str(folder)).dataset.to_table().sort_by("id").combine_chunks()
    return table.drop_columns([ROW_CHECKSUM])


class Job:
    """A job in a process, and all that it starts."""

    def __init__(self, given: Round, flags: list[str], name: str) -> None:
        self.given, self.name = given, name
        self.log = given.folder / f"{name}.log"
        self._number = given.folder / f"{name}.pid"
        self._before = everybody()
        with self.log.open("w") as stream:
            command = [_PYTHON, "-m", "benchmarks.attack.job", str(self._number), *flags]
            self.process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_ADDRESS": "local"},
                start_new_session=True,
            )

    def kill(self, victim: str, delay: float) -> None:
        """Kill a part of it after so many seconds, and look at how it ends."""
        while not self._number.exists():
            if self.process.poll() is not None:
                self.given.found(f"{self.name} ended before it began:\n{self.last_lines()}")
                return
            time.sleep(0.02)
        time.sleep(delay)
        if not self._strike(victim):
            self.given.did("ended before it was killed")
            self._look(self.process.returncode)
            return
        self.given.did(f"{victim} killed" if victim != "driver told to end" else victim)
        status = self._ended(_END_S)
        if status is None:
            self.given.found(f"{self.name}: {_END_S:g} s after the {victim} was killed the job still runs")
        elif victim == "driver told to end" and status not in _UNASKED and _TOLD_TO_END not in self.last_lines():
            self.given.found(f"{self.name}: told to end, it ended with status {status}:\n{self.last_lines()}")
        self._look(status)

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its status, None where it did not end."""
        status = self._ended(seconds)
        self._look(status)
        return status

    def last_lines(self) -> str:
        """Return the end of what it said."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-25:])

    def _strike(self, victim: str) -> bool:
        """Kill, once there is somebody of that kind; False where the job ends before."""
        driver = int(self._number.read_text())
        while self.process.poll() is None:
            chosen = VICTIMS[victim](driver, since(self._before))
            if chosen:
                self._send(victim, chosen)
                return True
            time.sleep(0.05)
        return False

    def _send(self, victim: str, chosen: list[psutil.Process]) -> None:
        if victim == "everything":
            kill_since(self._before)
            return
        number = signal.SIGTERM if victim == "driver told to end" else signal.SIGKILL
        one = chosen[self.given.rng.randrange(len(chosen))]
        self.given.log(f"  signal {number}: {names([one])}")
        with suppress(ProcessLookupError):
            os.kill(one.pid, number)

    def _ended(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _look(self, status: int | None) -> None:
        """See that it said nothing that is no sentence; where it hangs, end it."""
        if status is None:
            kill_since(self._before)
            self.process.wait()
        text = self.log.read_text("utf-8", "replace")
        if TRACEBACK in text:
            self.given.found(f"{self.name} said a traceback:\n{_around_traceback(text)}")


def _around_traceback(text: str) -> str:
    start = text.index(TRACEBACK)
    return text[max(0, start - 300) : start + 3000]
