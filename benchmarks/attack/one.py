"""One round in a process of its own: `python -m benchmarks.attack.one NAME SEED NUMBER FOLDER SHARED`.

What it did goes to `FOLDER/round.json`, what it says to standard output. A process that ends without the former has
crashed, which is a finding.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from benchmarks.attack.base import Attack, Outcome, Round, rng_of

RESULT = "round.json"
ATTACKS = {"damage": "damage:DamageAttack", "life": "life:LifeAttack", "encode": "killed:EncodeAttack"}
"""Name of an attack → "module:class" below `benchmarks.attack`."""


def run_round(name: str, seed: int, number: int, folder: Path, shared: Path) -> Outcome:
    """Run a round in this process and return what it did; an error that it raises is one more finding.

    Args:
        name: of the attack.
        seed: of the command.
        number: of the round.
        folder: its own; made if need be.
        shared: of all rounds of the command; made if need be.
    """
    for each in (folder, shared):
        each.mkdir(parents=True, exist_ok=True)
    given = Round(rng_of(seed, name, number), folder, shared)
    try:
        module, _, title = ATTACKS[name].partition(":")
        attack: type[Attack] = getattr(import_module(f"benchmarks.attack.{module}"), title)
        attack().round(given)
    except Exception:
        given.found(f"the round itself ended by an error:\n{traceback.format_exc()}")
    return given.outcome()


def main() -> None:
    """Run the round that the command line names."""
    name, seed, number, folder, shared = sys.argv[1:]
    # What is passed over or made anew is named there, which is much.
    logging.getLogger("diffretriever").setLevel(logging.ERROR)
    outcome = run_round(name, int(seed), int(number), Path(folder), Path(shared))
    half = Path(folder) / f"{RESULT}.half"
    half.write_text(outcome.model_dump_json(), "utf-8")
    half.rename(half.with_name(RESULT))
    sys.stdout.flush()
    # What a library would still do at its end is no part of the round.
    os._exit(0)


if __name__ == "__main__":
    main()
