"""Fit a selector of query budgets on sweeps, and evaluate it across folds and across data sets."""

from __future__ import annotations

from _entry import command, run

from diffretriever.schemas.selector import FitSelectorJob


def main(config: FitSelectorJob) -> None:
    """Fit; print the cross-validated table and the paths of selector and report."""
    from diffretriever.studies.budgets.selector_report import FITTED_SELECTOR_FILE, report_selector, selector_table

    report = report_selector(config, command())
    print(selector_table(report))
    print(f"selector: {config.output / FITTED_SELECTOR_FILE}")
    print(f"report: {config.output / 'report.md'}")


if __name__ == "__main__":
    run(FitSelectorJob, main)
