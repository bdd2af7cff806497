"""Run those rows of the paper's tables that can be run here, and print ours beside the paper's."""

from __future__ import annotations

from _entry import command, run

from diffretriever.studies.reproduction.config import ReproduceJob


def main(job: ReproduceJob) -> None:
    """List or run the rows, print the measures and the report's path."""
    from diffretriever.studies.reproduction.exhibits import exhibit_listing, write_paper
    from diffretriever.studies.reproduction.plan import make_plan
    from diffretriever.studies.reproduction.report import listing, make_report, terminal_table, write_report
    from diffretriever.studies.reproduction.runner import run_plan

    plan = make_plan(job)
    if job.dry_run:
        print(listing(plan))
        print(f"\n{exhibit_listing(plan, job, make_report(plan, job, {}, command()))}")
        return

    failed = run_plan(plan, job, command(), lambda line: print(line, flush=True))
    report = write_report(plan, job, failed, command())
    pages = write_paper(plan, job, report)
    print(f"\n{terminal_table(report)}")
    print(f"report: {', '.join(str(job.output / page) for page in pages)}")


if __name__ == "__main__":
    run(ReproduceJob, main)
