"""Fault injection: random kills, damage and life cycles of indexes and jobs, for a number of minutes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from pydantic import NonNegativeInt, PositiveFloat

from benchmarks import ROOT
from benchmarks.attack.base import Outcome
from benchmarks.attack.one import ATTACKS, RESULT
from benchmarks.attack.processes import adopt_orphans, bury, everybody, kill_since, names, own, wait_for_none
from benchmarks.measuring import header, run
from diffretriever.schemas.base import CommaSeparated
from diffretriever.schemas.settings import JobConfig

ROUND_LIMIT_S = 1200.0
"""A round that takes longer hangs, even on a busy machine."""
_LOG_LINES = 30
_GRACE_S = 20.0
"""Time for processes of a round to end after it."""
RAY_SETTINGS = {
    # By default, Ray's workers have the lowest priority but four: on a busy machine they take minutes to start.
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_worker_register_timeout_seconds": "300",
    # By default, a job waits a minute for a dead head.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}


class AttackBenchmark(JobConfig):
    """Attack jobs and indexes, and compare each result with that of an undisturbed run.

    Exit status: 0 without findings, otherwise 1.
    """

    minutes: PositiveFloat = 10.0
    """Duration; the round in progress is finished."""
    seed: int = 1
    """Seed of each round: the same seed, attack and round are the same again, except for the timing of kills."""
    only: CommaSeparated = ()
    """Attacks to run, repeated or separated by commas; default: all."""
    round: NonNegativeInt | None = None
    """Run this round of the one attack named by --only, and no other."""
    output: Path | None = None
    """Folder for `report.json` and the folders of rounds with findings; default: a new one."""


@dataclass
class Tally:
    """Results of the rounds of one attack."""

    rounds: int = 0
    seconds: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, object]] = field(default_factory=list)


def main(config: AttackBenchmark) -> None:
    """Attack, and write the report after every round."""
    if unknown := set(config.only) - ATTACKS.keys():
        raise SystemExit(f"unknown attack {', '.join(sorted(unknown))}: choose from {', '.join(ATTACKS)}")
    if config.round is not None and len(config.only) != 1:
        raise SystemExit("--round is for one attack: name it by --only")
    output = (config.output or Path(tempfile.mkdtemp(prefix="attack-report-"))).absolute()
    output.mkdir(parents=True, exist_ok=True)
    about = header()
    tallies = {name: Tally() for name in config.only or ATTACKS}
    signal.signal(signal.SIGTERM, _interrupted)
    adopt_orphans()
    with _surroundings() as work:
        end = time.monotonic() + 60 * config.minutes
        while time.monotonic() < end or config.round is not None:
            name = min(tallies, key=lambda each: tallies[each].seconds)
            number = tallies[name].rounds if config.round is None else config.round
            _take_round(config, name, number, tallies[name], work, output)
            report = {**about, "seed": config.seed, "attacks": {each: asdict(tallies[each]) for each in tallies}}
            (output / "report.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
            if config.round is not None:
                break
    print(f"report: {output / 'report.json'}")
    if any(tally.findings for tally in tallies.values()):
        raise SystemExit(1)


def _interrupted(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _take_round(config: AttackBenchmark, name: str, number: int, tally: Tally, work: Path, output: Path) -> None:
    folder = work / f"{name}-{number}"
    start = time.monotonic()
    outcome = _run(config.seed, name, number, folder, work / "shared")
    seconds = time.monotonic() - start
    tally.rounds += 1
    tally.seconds += seconds
    tally.done = dict(Counter(tally.done) + Counter(outcome.done))
    done = ", ".join(f"{count} {what}" for what, count in outcome.done.items())
    print(f"{name} {number}: {seconds:.0f} s, {len(outcome.findings)} findings; {done}", flush=True)
    again = f"python -m benchmarks.attack --only {name} --round {number} --seed {config.seed}"
    for text in outcome.findings:
        print(f"  FOUND: {text}\n  again: {again}", flush=True)
        tally.findings.append({"round": number, "what": text, "reproduce": again})
    if outcome.findings:
        kept = output / "findings" / folder.name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, symlinks=True, ignore_dangling_symlinks=True)
    shutil.rmtree(folder, ignore_errors=True)


def _run(seed: int, name: str, number: int, folder: Path, shared: Path) -> Outcome:
    """Run one round in a process of its own, and end all processes that it leaves."""
    folder.mkdir(parents=True)
    before = everybody()
    log = folder / "log"
    program = ["python", "-m", "benchmarks.attack.one", name, str(seed), str(number), str(folder), str(shared)]
    with log.open("w") as stream:
        process = subprocess.Popen(program, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        own(process.pid)
        end = time.monotonic() + ROUND_LIMIT_S
        try:
            while process.poll() is None and time.monotonic() < end:
                # As init does: to its workers, a dead raylet that has not been waited for is alive.
                bury()
                time.sleep(0.2)
        finally:
            if is_late := process.poll() is None:
                kill_since(before)
                process.wait()
    outcome = _outcome(folder, None if is_late else process.returncode, log)
    left = wait_for_none(before, _GRACE_S)
    bury()
    if left:
        finding = f"processes were left: {names(left)}"
        kill_since(before)
        outcome = outcome.model_copy(update={"findings": (*outcome.findings, finding)})
    return outcome


def _outcome(folder: Path, status: int | None, log: Path) -> Outcome:
    result = folder / RESULT
    if status == 0 and result.is_file():
        return Outcome.model_validate_json(result.read_text("utf-8"))
    how = f"took longer than {ROUND_LIMIT_S:g} s" if status is None else f"ended with status {status}"
    lines = log.read_text("utf-8", "replace").splitlines()
    last = "\n".join(lines[-_LOG_LINES:])
    before = tuple(line.removeprefix("FOUND: ") for line in lines if line.startswith("FOUND: "))
    return Outcome(done={}, findings=(*before, f"the process of the round {how}; its last lines:\n{last}"))


@contextmanager
def _surroundings() -> Iterator[Path]:
    """Give a folder for rounds; their processes fork from a warm Python, and are killed at the end."""
    from tests.warm.warm_python import warm_python

    # Paths of Ray's sockets, which are below it, may have a hundred characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray, tempfile.TemporaryDirectory() as folder:
        paths = [str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {
            **RAY_SETTINGS,
            "PYTHONPATH": ":".join(paths),
            "RAY_TMPDIR": ray,
            "DIFFRETRIEVER_CACHE": f"{folder}/cache",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        # An interpreter with warning options does not start warm.
        os.environ.pop("PYTHONWARNINGS", None)
        # The warm Python ignores interrupts from the keyboard: this process ends it.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with warm_python() as variables:
            os.environ |= variables
            signal.signal(signal.SIGINT, interrupt)
            before = everybody()
            try:
                yield Path(folder)
            finally:
                kill_since(before)
                bury()


if __name__ == "__main__":
    run(AttackBenchmark, main)
