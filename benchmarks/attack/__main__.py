"""The platform under attack, for as long as it is told: random kills, damages, life cycles, writers and requests."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import NonNegativeInt, PositiveFloat

from benchmarks.attack.driver import Plan, all_names, attack, markdown, write_report
from benchmarks.attack.registry import entry_of
from benchmarks.measuring import header, run
from diffretriever.schemas.base import CommaSeparated
from diffretriever.schemas.settings import JobConfig


class AttackBenchmark(JobConfig):
    """Attack jobs, indexes and the server, and hold every result against one that nothing disturbed.

    Exit status: 0 where nothing was found, 1 with findings, 130 or 143 when told to end before that.
    """

    minutes: PositiveFloat = 10.0
    """How long: the round that runs then is finished."""
    seed: int = 1
    """Decides what each round does: the same seed, attack and round are the same again, but for the moments at which a
    machine reaches what is killed."""
    only: CommaSeparated = ()
    """Attacks to run, repeated or separated by commas; default: all."""
    round: NonNegativeInt | None = None
    """Run this round of the one attack named by --only, and no other."""
    s3: bool = True
    """Also start an S3 endpoint, which `make .venv-s3/.installed` installs."""
    output: Path | None = None
    """Folder for `report.json`, `report.md` and the folders of rounds that found something; default: a new one."""


def main(config: AttackBenchmark) -> None:
    """Attack, print the table, write the report."""
    for name in config.only:
        entry_of(name)
    if config.round is not None and len(config.only) != 1:
        raise SystemExit("--round is for one attack: name it by --only")
    output = config.output or Path(tempfile.mkdtemp(prefix="attack-report-"))
    about = header()
    plan = Plan(
        minutes=config.minutes,
        seed=config.seed,
        attacks=tuple(config.only) or all_names(),
        round=config.round,
        s3=config.s3,
        output=output.absolute(),
    )
    tallies, stopped = attack(plan)
    write_report(plan, about, tallies, stopped)
    print(f"\n{markdown(tallies)}\nreport: {plan.output / 'report.json'} and report.md beside it")
    if any(tally.findings for tally in tallies):
        raise SystemExit(1)
    if stopped is not None:
        raise SystemExit(128 + stopped)


if __name__ == "__main__":
    run(AttackBenchmark, main)
