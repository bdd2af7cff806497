"""Write the analysis of budget sweeps from their files, without encoding anything."""

from __future__ import annotations

from _entry import command, run

from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob


def main(config: AnalyseBudgetsJob) -> None:
    """Write the analysis and print the report's path."""
    from diffretriever.studies.budgets.oracle_gains import OracleSection
    from diffretriever.studies.budgets.report import analyse

    report = analyse(config, command())
    print(f"fixed budget {report.fixed} ({report.chosen})")
    print(f"oracles, {report.modes[0]} {report.measure}:\n{report.section(OracleSection).table(report.modes[0])}")
    print(f"report: {config.output / 'report.md'}")


if __name__ == "__main__":
    run(AnalyseBudgetsJob, main)
