"""Measure a grid of budgets on a collection and choose the best of them."""

from __future__ import annotations

from _entry import command, run

from diffretriever.schemas.base import counted
from diffretriever.schemas.sweep import SweepJob, SweepSummary


def main(job: SweepJob) -> None:
    """Encode, search and measure the grid; print it and the selection's path."""
    from diffretriever.evaluation.measures import parse_measures
    from diffretriever.studies.budgets.measuring import SELECTION_FILE, measure_sweep, select_budget, sweep_tables
    from diffretriever.studies.budgets.sweep import sweep_budgets

    parse_measures(job.measures)
    swept = sweep_budgets(job, command(), lambda line: print(line, flush=True))
    manifest = measure_sweep(job)
    selection = select_budget(job, manifest)
    print(f"\n{sweep_tables(job.output, manifest)}\n\n{describe(swept)}")
    if selection is None:
        print("no budget was chosen: name the split to choose it on with --select-split")
        return
    chosen = f"{selection.mode} {selection.measure} on {selection.split}: {selection.value:.4f}"
    print(f"chosen: {selection.budget} ({chosen}), in {job.output / SELECTION_FILE}")


def describe(swept: SweepSummary) -> str:
    """Return the summary as a line for a person."""
    cells, scans = counted(swept.searched, "cells"), counted(swept.passes, "scans")
    earlier = f", {swept.found:,} by an earlier attempt" if swept.found else ""
    searched = f"{cells} searched in {scans} of {counted(swept.passages, 'passages')}{earlier}"
    return f"{searched}: {swept.seconds:.0f} s"


if __name__ == "__main__":
    run(SweepJob, main)
