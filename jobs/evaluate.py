"""Measure an index on a collection's queries, a finished run, or several of them and their fusion."""

from __future__ import annotations

import shlex
import sys

from _entry import absolute_place, run

from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.places import as_place


def main(config: EvaluateJob) -> None:
    """Evaluate, print the table, say where the report is."""
    from diffretriever.evaluation.evaluate import SELECTOR_FILE, evaluate_job, selector_table
    from diffretriever.evaluation.fused import FUSION_FILE, fusion_table
    from diffretriever.evaluation.report import evaluation_table
    from diffretriever.files import read_text
    from diffretriever.schemas.evaluate import SelectorReport
    from diffretriever.schemas.fusion import FusionReport

    output = as_place(absolute_place(config.output, "--output"))
    results = evaluate_job(config.model_copy(update={"output": output}), shlex.join(["python", *sys.argv]))
    if config.runs:
        fused = FusionReport.model_validate_json(read_text(output / FUSION_FILE))
        print(fusion_table(fused, results))
    else:
        print(evaluation_table(results))
    if config.selector:
        selected = read_text(output / SELECTOR_FILE)
        print(f"\n{selector_table(SelectorReport.model_validate_json(selected))}")
    print(f"report: {output / 'report.md'}")


if __name__ == "__main__":
    run(EvaluateJob, main)
