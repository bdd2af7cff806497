"""The paper's tables and figures as pages: `paper.html`, `paper.md`, `paper.tex`, and the pictures beside them."""

from __future__ import annotations

from diffretriever.evaluation.formats import FORMATS, Command, Section
from diffretriever.evaluation.formats.base import Block
from diffretriever.files import write_bytes, write_text
from diffretriever.reproduction.exhibits import EXHIBITS, Exhibit, Findings
from diffretriever.reproduction.plan import Plan
from diffretriever.reproduction.report import ReproductionReport, stand_in_warning
from diffretriever.schemas.reproduce import ReproduceJob

_TITLE = "DiffRetriever: the paper's tables and figures, and ours"

_ABOUT = (
    "Every table and figure in the paper's order and layout. What the paper prints is stored as data, with its signs "
    "of significance; ours stands beside it where it was measured."
)


def write_paper(plan: Plan, job: ReproduceJob, report: ReproductionReport) -> list[str]:
    """Write the pages into the job's output folder; return their names.

    Args:
        plan: of `job`.
        job: where to write.
        report: of the run.
    """
    findings = Findings(job, plan, report)
    sections = [Section("What this is", [*_introduction(report)])]
    for exhibit in asked_for(job):
        shown = exhibit.show(findings)
        for name, content in shown.files.items():
            write_bytes(job.output / name, content)
        blocks = [*shown.blocks, Command(exhibit.command(job))]
        sections.append(Section(f"{exhibit.place}: {exhibit.title}", blocks))
    names = []
    for each in FORMATS:
        names.append(f"paper.{each.suffix}")
        write_text(job.output / names[-1], each.page(_TITLE, sections))
    return names


def asked_for(job: ReproduceJob) -> list[Exhibit]:
    """Return the exhibits that the job names; all where it names none."""
    return [exhibit for exhibit in EXHIBITS if not job.tables or exhibit.name in job.tables]


def exhibit_listing(plan: Plan, job: ReproduceJob, report: ReproductionReport) -> str:
    """Return every table and figure with its command and what ours lacks, for a dry run."""
    findings = Findings(job, plan, report)
    lines = []
    for exhibit in asked_for(job):
        lines.append(f"{exhibit.place}: {exhibit.title} [{exhibit.name}]")
        lines.append(f"  command: {exhibit.command(job)}")
        lines += [f"  lacks: {reason}" for reason in exhibit.lacks(findings)] or ["  whole"]
    return "\n".join(lines)


def _introduction(report: ReproductionReport) -> list[Block]:
    return [
        _ABOUT,
        *stand_in_warning(report),
        *report.notes,
        f"Made {report.created} by",
        Command(report.command),
    ]
