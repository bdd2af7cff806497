"""Fit a selector of query budgets on sweeps, and evaluate it across folds and across data sets."""

from __future__ import annotations

import shlex
import sys

from _entry import absolute_place, run

from diffretriever.schemas.places import as_place
from diffretriever.schemas.selector import FitSelectorJob


def main(config: FitSelectorJob) -> None:
    """Fit, print the cross-validated table, say where selector and report are."""
    from diffretriever.studies.budgets.selector_report import FITTED_SELECTOR_FILE, report_selector, selector_table

    output = as_place(absolute_place(config.output, "--output"))
    report = report_selector(config.model_copy(update={"output": output}), shlex.join(["python", *sys.argv]))
    print(selector_table(report))
    print(f"selector: {output / FITTED_SELECTOR_FILE}")
    print(f"report: {output / 'report.md'}")


if __name__ == "__main__":
    run(FitSelectorJob, main)
