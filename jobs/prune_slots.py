"""Trace storage against effectiveness as the slots of an index's passages are pruned."""

from __future__ import annotations

import shlex
import sys

from _entry import absolute_place, run

from diffretriever.studies.budgets.pruning_config import PruneSlotsJob


def main(config: PruneSlotsJob) -> None:
    """Trace the curve; print it and its path."""
    from diffretriever.studies.budgets.pruning_report import prune_slots, prune_table

    pruned = config.pruned and absolute_place(config.pruned, "--pruned")
    report = prune_slots(config.model_copy(update={"pruned": pruned}), shlex.join(["python", *sys.argv]))
    print(prune_table(report))
    print(f"curve: {config.output / 'curve.md'}")
    if pruned:
        print(f"index: {pruned}")


if __name__ == "__main__":
    run(PruneSlotsJob, main)
