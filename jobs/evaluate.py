"""Measure an index on a collection's queries, or finished runs and their fusion."""

from __future__ import annotations

from _entry import command, run

from diffretriever.schemas.evaluate import EvaluateJob


def main(config: EvaluateJob) -> None:
    """Evaluate; print the table and the report's path."""
    from diffretriever.evaluation.evaluate import evaluate_job
    from diffretriever.evaluation.report import evaluation_table

    results = evaluate_job(config, command())
    print(f"{evaluation_table(results)}\nreport: {config.output / 'report.md'}")


if __name__ == "__main__":
    run(EvaluateJob, main)
