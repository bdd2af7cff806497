"""Write the analysis of budget sweeps from their files, without encoding anything."""

from __future__ import annotations

import shlex
import sys

from _entry import absolute_place, run

from diffretriever.schemas.places import as_place
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob


def main(config: AnalyseBudgetsJob) -> None:
    """Analyse, and say where the report is."""
    from diffretriever.studies.budgets.oracle_gains import OracleSection
    from diffretriever.studies.budgets.report import analyse

    output = as_place(absolute_place(config.output, "--output"))
    report = analyse(config.model_copy(update={"output": output}), shlex.join(["python", *sys.argv]))
    print(f"fixed budget {report.fixed} ({report.chosen})")
    print(f"oracles, {report.modes[0]} {report.measure}:\n{report.section(OracleSection).table(report.modes[0])}")
    print(f"report: {output / 'report.md'}")


if __name__ == "__main__":
    run(AnalyseBudgetsJob, main)
