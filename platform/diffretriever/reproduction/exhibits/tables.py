"""The tables of scores, by their layouts."""

from __future__ import annotations

from collections import Counter

from diffretriever.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.reproduction.formats.base import Block
from diffretriever.reproduction.layouts import layout_of
from diffretriever.reproduction.layouts.marks import check_marks
from diffretriever.reproduction.plan import DONE, READY, PlannedRow
from diffretriever.reproduction.report import ReproducedTable
from schemas.reproduce import PublishedTable, ReproduceJob

_COLOURS = (
    "Ours stands beside the paper's where it was measured, with its difference; its cells are shaded blue above the "
    "paper's figure and orange below it, from .005, .015 and .03 on. Marks and emphasis of ours follow from our own "
    "results by the paper's rules."
)


class ScoreTable(Exhibit):
    """A table of the paper, or `mini`."""

    def command(self, job: ReproduceJob) -> str:
        """Return the command that measures its rows."""
        return f"python jobs/reproduce.py --tables {self.name} --collections-root COLLECTIONS --output {job.output}"

    def lacks(self, findings: Findings) -> list[str]:
        """Count the cells of rows and collections by what stands in their way."""
        counts: Counter[str] = Counter()
        _, rows = _planned(findings, self.name)
        for row in rows:
            for collection in row.tasks:
                status = row.status(collection)
                if status != DONE:
                    counts["not run yet" if status == READY else status] += 1
        measured = findings.table(self.name)
        for result in measured.rows if measured else ():
            for cell in result.cells:
                if cell.ours is None and result.status.get(cell.collection) == DONE:
                    counts[f"{cell.mode} {cell.measure} is not measured by this job"] += 1
        return [f"{count} results: {reason}" for reason, count in counts.most_common()]

    def show(self, findings: Findings) -> Shown:
        """Show the paper's beside ours, ours alone, and the marks of both."""
        table, _ = _planned(findings, self.name)
        measured = findings.table(self.name)
        assert measured is not None, "a table that was planned is in the report"
        layout = layout_of(table)
        blocks: list[Block] = list(layout.grids(table, measured, "beside"))
        if _has_ours(measured) and _is_published(measured):
            blocks.append(_COLOURS)
            if layout.marking.rules:
                blocks.append(check_marks(layout.marking, measured).sentence())
            blocks += ["Ours alone, as the paper would print it:", *layout.grids(table, measured, "ours")]
        return Shown([*blocks, *_lacking(self.lacks(findings))])


def _planned(findings: Findings, name: str) -> tuple[PublishedTable, tuple[PlannedRow, ...]]:
    return next((table, rows) for table, rows in findings.plan.tables if table.id == name)


def _is_published(measured: ReproducedTable) -> bool:
    return any(cell.published is not None for row in measured.rows for cell in row.cells)


def _has_ours(measured: ReproducedTable) -> bool:
    return any(cell.ours is not None for row in measured.rows for cell in row.cells)


def _lacking(reasons: list[str]) -> list[str]:
    return [f"Ours lacks: {'; '.join(reasons)}."] if reasons else []
