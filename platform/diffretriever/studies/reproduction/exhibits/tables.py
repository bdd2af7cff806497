"""The tables of scores, by their layouts."""

from __future__ import annotations

from collections import Counter

from diffretriever.evaluation.formats.pages import Block
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.layouts import layout_of
from diffretriever.studies.reproduction.layouts.marks import compare_marks
from diffretriever.studies.reproduction.plan import DONE, READY
from diffretriever.studies.reproduction.report import ReproducedTable

_COLOURS = (
    "Ours stands beside the paper's where it was measured, with its difference; its cells are shaded blue above the "
    "paper's figure and orange below it, from .005, .015 and .03 on. Marks and emphasis of ours follow from our own "
    "results by the paper's rules."
)


class ScoreTable(Exhibit):
    """A table of the paper, or `mini`."""

    flags = "--collections-root COLLECTIONS"

    def lacks(self, findings: Findings) -> list[str]:
        """Count the cells of rows and collections by what stands in their way, then name the collections."""
        counts: Counter[str] = Counter()
        plan, absent = findings.plan, dict[str, None]()
        for table, rows in plan.tables:
            for row in rows if table.id == self.name else ():
                statuses = (row.status(collection) for collection in row.tasks)
                counts.update("not run yet" if status == READY else status for status in statuses if status != DONE)
                absent |= dict.fromkeys(plan.absent[name] for name in row.tasks if name in plan.absent)
        for measured in findings.tables(self.name):
            for result in measured.rows:
                missing = (c for c in result.cells if c.ours is None and result.status.get(c.collection) == DONE)
                counts.update(f"{cell.mode} {cell.measure} was not measured" for cell in missing)
        return [*(f"{n} results: {reason}" for reason, n in counts.most_common() if reason not in absent), *absent]

    def show(self, findings: Findings) -> Shown:
        """Show the paper's rows with ours below them, and compare the marks of both."""
        table = next(table for table, _ in findings.plan.tables if table.id == self.name)
        measured = findings.tables(self.name)
        layout = layout_of(table)
        blocks: list[Block] = list(layout.tables(table, measured))
        with_ours = [each for each in measured if _has_ours(each)]
        if with_ours and any(_is_published(each) for each in measured):
            blocks.append(_COLOURS)
            if layout.marking.rules:
                blocks += [f"{_protocol(each)}{compare_marks(layout.marking, each)}" for each in with_ours]
        return Shown([*blocks, *self.lacking(findings)])


def _protocol(measured: ReproducedTable) -> str:
    return "" if measured.protocol is None else f"Protocol {measured.protocol}. "


def _is_published(measured: ReproducedTable) -> bool:
    return any(cell.published is not None for row in measured.rows for cell in row.cells)


def _has_ours(measured: ReproducedTable) -> bool:
    return any(cell.ours is not None for row in measured.rows for cell in row.cells)
