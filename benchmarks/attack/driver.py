"""Takes rounds in turn until the time is over, says how it goes, and leaves a report to reproduce findings by."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks import ROOT
from benchmarks.attack.base import Outcome
from benchmarks.attack.one import RESULT
from benchmarks.attack.processes import adopt_orphans, bury, everybody, kill_since, names, own, wait_for_none
from benchmarks.attack.registry import ATTACKS, entry_of

ROUND_LIMIT_S = 1200.0
"""A round that takes longer hangs, on a machine that is busy with other work as well."""
PYTHON = "python"
"""The warm one, which is the first of that name where rounds run."""
_LOG_LINES = 30
_GRACE_S = 20.0
"""For what a round has started, to end after it."""
RAY_SETTINGS = {
    # Ray runs its workers at the lowest priority but four: beside other programs they would take minutes to start.
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    # It gives up on processes that a busy machine is slow to start.
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_worker_register_timeout_seconds": "300",
    # It waits a minute for a head that is dead.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}


class StoppedError(BaseException):
    """A signal has come that asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass
class Tally:
    """What became of the rounds of one attack."""

    name: str
    weight: int
    next: int = 0
    rounds: int = 0
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What a command is told."""

    minutes: float
    seed: int
    attacks: tuple[str, ...]
    round: int | None
    s3: bool
    output: Path

    def reproduce(self, name: str, number: int) -> str:
        """Return the command that runs one round again."""
        s3 = "" if self.s3 else " --no-s3"
        return f"python -m benchmarks.attack --only {name} --round {number} --seed {self.seed}{s3}"


def attack(plan: Plan) -> tuple[list[Tally], int | None]:
    """Run the rounds; return what became of them, and the signal that ended it before its time."""
    tallies = [Tally(name, entry_of(name).weight) for name in plan.attacks]
    stopped = None
    plan.output.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="attack-"))
    adopt_orphans()
    try:
        with signals_raised(), surroundings(work):
            _rounds(plan, tallies, work)
    except StoppedError as error:
        stopped = error.number
    finally:
        kill_since([])
        bury()
        shutil.rmtree(work, ignore_errors=True)
    return tallies, stopped


def _rounds(plan: Plan, tallies: list[Tally], work: Path) -> None:
    begin = time.monotonic()
    end = begin + 60 * plan.minutes
    while time.monotonic() < end or plan.round is not None:
        tally = min(tallies, key=lambda each: each.seconds / each.weight)
        number = tally.next if plan.round is None else plan.round
        tally.next += 1
        folder = work / f"{tally.name}-{number}"
        start = time.monotonic()
        try:
            outcome = run(plan, tally.name, number, folder, work / "shared")
        finally:
            tally.seconds += time.monotonic() - start
        tally.rounds += 1
        tally.done.update(outcome.done)
        kept = _kept(plan, tally.name, number, folder) if outcome.findings else None
        for text in outcome.findings:
            again = plan.reproduce(tally.name, number)
            tally.findings.append({"round": number, "what": text, "folder": str(kept), "reproduce": again})
        shutil.rmtree(folder, ignore_errors=True)
        _tell(tally, number, time.monotonic() - start, outcome, time.monotonic() - begin, plan)
        if plan.round is not None:
            return


def run(plan: Plan, name: str, number: int, folder: Path, shared: Path) -> Outcome:
    """Run one round in a process of its own, and see that nothing of it is left."""
    folder.mkdir(parents=True)
    before = everybody()
    log = folder / "log"
    s3 = "s3" if plan.s3 else "none"
    program = ["-m", "benchmarks.attack.one", name, str(plan.seed), str(number), str(folder), str(shared), s3]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [PYTHON, *program], cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        own(process.pid)
        try:
            status = _status(process)
        finally:
            if process.poll() is None:
                kill_since(before)
                process.wait()
    outcome = _outcome(folder, status, log)
    left = wait_for_none(before, _GRACE_S)
    bury()
    if left:
        told = names(left)
        kill_since(before)
        outcome = outcome.model_copy(update={"findings": (*outcome.findings, f"processes were left: {told}")})
    return outcome


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for a round's process; None if it takes too long."""
    end = time.monotonic() + ROUND_LIMIT_S
    while (status := process.poll()) is None and time.monotonic() < end:
        # As init does at once: to its workers a dead raylet that nobody has taken note of is alive.
        bury()
        time.sleep(0.2)
    return status


def _outcome(folder: Path, status: int | None, log: Path) -> Outcome:
    result = folder / RESULT
    if status == 0 and result.is_file():
        return Outcome.model_validate_json(result.read_text("utf-8"))
    how = f"took longer than {ROUND_LIMIT_S:g} s" if status is None else f"ended with status {status}"
    lines = log.read_text("utf-8", "replace").splitlines()
    last = "\n".join(lines[-_LOG_LINES:])
    before = tuple(line.removeprefix("FOUND: ") for line in lines if line.startswith("FOUND: "))
    return Outcome(done={}, findings=(*before, f"the process of the round {how}; its last lines:\n{last}"))


def _kept(plan: Plan, name: str, number: int, folder: Path) -> Path:
    place = plan.output / "findings" / f"{name}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place, symlinks=True, ignore_dangling_symlinks=True)
    return place


def _tell(tally: Tally, number: int, seconds: float, outcome: Outcome, passed: float, plan: Plan) -> None:
    clock = f"{int(passed) // 60:3}:{int(passed) % 60:02} of {plan.minutes:g} min"
    what = ", ".join(f"{count} {name}" for name, count in outcome.done.items())
    verdict = "clean" if not outcome.findings else f"{len(outcome.findings)} FOUND"
    print(f"{clock}  {tally.name} {number}: {seconds:.0f} s, {verdict}; {what}", flush=True)
    for text in outcome.findings:
        print(f"  FOUND: {text}\n  again: {plan.reproduce(tally.name, number)}", flush=True)


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise `StoppedError` in place of an end by SIGINT or SIGTERM."""

    def stop(number: int, _: FrameType | None) -> None:
        raise StoppedError(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def surroundings(work: Path) -> Iterator[None]:
    """Give rounds a Python that is warm, and places for their caches and for Ray's files."""
    from tests.warm.warm_python import warm_python

    # Ray's sockets lie below it, and their paths may have a hundred characters.
    ray = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    paths = [str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    changes = {
        **RAY_SETTINGS,
        "PYTHONPATH": ":".join(paths),
        "RAY_TMPDIR": str(ray),
        "DIFFRETRIEVER_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    before = dict(os.environ)
    os.environ.update(changes)
    # Interpreters that are asked so begin by themselves, not warm.
    os.environ.pop("PYTHONWARNINGS", None)
    try:
        with ExitStack() as stack:
            # An interrupt from the keyboard is for this process: it ends the others.
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.environ.update(stack.enter_context(warm_python()))
            signal.signal(signal.SIGINT, interrupt)
            stack.callback(kill_since, everybody())
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(ray, ignore_errors=True)


def rows_of(tallies: list[Tally]) -> list[list[str]]:
    """Return the rows of the table: attack, rounds, minutes, what was done, findings."""
    rows = []
    for tally in tallies:
        done = "; ".join(f"{count:,} {name}" for name, count in sorted(tally.done.items())) or "nothing"
        rows.append([tally.name, str(tally.rounds), f"{tally.seconds / 60:.1f}", done, str(len(tally.findings))])
    return rows


COLUMNS = ("attack", "rounds", "minutes", "done", "findings")


def markdown(tallies: list[Tally]) -> str:
    """Return the table, and each finding with the command that makes it again."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows_of(tallies)]
    for tally in tallies:
        for finding in tally.findings:
            lines += ["", f"**{tally.name}, round {finding['round']}** (`{finding['reproduce']}`):", ""]
            lines += [f"    {line}" for line in str(finding["what"]).splitlines()]
    return "\n".join(lines) + "\n"


def write_report(plan: Plan, about: dict[str, str], tallies: list[Tally], stopped: int | None) -> None:
    """Write `report.json` and `report.md` into the output folder."""
    attacks = {
        tally.name: {
            "rounds": tally.rounds,
            "seconds": round(tally.seconds, 1),
            "done": dict(sorted(tally.done.items())),
            "findings": tally.findings,
        }
        for tally in tallies
    }
    content = {**about, "seed": plan.seed, "minutes": plan.minutes, "stopped_by": stopped, "attacks": attacks}
    (plan.output / "report.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    head = "\n".join(f"{name}: {value}" for name, value in about.items())
    (plan.output / "report.md").write_text(f"```text\n{head}\n```\n\n{markdown(tallies)}", "utf-8")
    sys.stdout.flush()


def all_names() -> tuple[str, ...]:
    """Return the names of all attacks."""
    return tuple(ATTACKS)
