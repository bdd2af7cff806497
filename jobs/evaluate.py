"""Measure an index on a collection's queries, or a finished run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from _entry import lasting, run

from schemas.jobs import EvaluateJob


def main(config: EvaluateJob) -> None:
    """Evaluate, print the table, say where the report is."""
    from diffretriever.evaluation.evaluate import evaluate_job
    from diffretriever.evaluation.report import evaluation_table

    output = Path(lasting(config.output, "--output"))
    results = evaluate_job(config.model_copy(update={"output": output}), shlex.join(["python", *sys.argv]))
    print(evaluation_table(results))
    print(f"report: {output / 'report.md'}")


if __name__ == "__main__":
    run(EvaluateJob, main)
