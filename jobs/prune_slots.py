"""Trace storage against effectiveness as the slots of an index's passages are pruned."""

from __future__ import annotations

from _entry import command, run

from diffretriever.studies.budgets.pruning_config import PruneSlotsJob


def main(config: PruneSlotsJob) -> None:
    """Trace the curve; print it and its path."""
    from diffretriever.studies.budgets.pruning_report import prune_slots, prune_table

    report = prune_slots(config, command())
    print(prune_table(report))
    print(f"curve: {config.output / 'curve.md'}")
    if config.pruned:
        print(f"index: {config.pruned}")


if __name__ == "__main__":
    run(PruneSlotsJob, main, absolute=("pruned",))
