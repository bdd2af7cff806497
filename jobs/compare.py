"""Compare runs and indexes: a table with letters of significance, intervals, the queries on which they differ."""

from __future__ import annotations

from _entry import command, run

from diffretriever.schemas.evaluate import CompareJob


def main(config: CompareJob) -> None:
    """Compare; print the table and the paths of the pages."""
    from diffretriever.evaluation.comparison import compare_runs
    from diffretriever.evaluation.comparison_page import lettered_table

    report = compare_runs(config, command())
    print(f"{lettered_table(report)}\n\nreport: {config.output / 'comparison.md'}, also .html and .tex")


if __name__ == "__main__":
    run(CompareJob, main)
