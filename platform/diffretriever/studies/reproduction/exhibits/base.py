"""Base class of the paper's tables and figures: their command, missing results and content."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from diffretriever.core.files import is_file, read_text, understood
from diffretriever.evaluation.formats.pages import Block, Picture
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.exhibits.analyses import Analysis, read_analyses
from diffretriever.studies.reproduction.latencies import Latencies
from diffretriever.studies.reproduction.plan import Plan
from diffretriever.studies.reproduction.report import ReproducedTable, ReproductionReport


@dataclass(frozen=True)
class Findings:
    """A run's job, plan and report, and the measurements that the job names."""

    job: ReproduceJob
    plan: Plan
    report: ReproductionReport

    @cached_property
    def analyses(self) -> dict[str, Analysis]:
        """Analyses of budgets by backbone, under the names that the job gives them."""
        return read_analyses(self.job)

    @cached_property
    def latencies(self) -> Latencies | None:
        """Measured latencies, if the job names a file."""
        place = self.job.latencies
        if place is None:
            return None
        if not is_file(place):
            raise ValueError(f"--latencies {place}: no such file: make it by python -m benchmarks.latency")
        with understood(place, "make it by python -m benchmarks.latency"):
            return Latencies.model_validate(json.loads(read_text(place))["latencies"])

    def score(self, table: str, row: str, collection: str, mode: str) -> float | None:
        """Return the score of a cell under the first protocol, if it was measured."""
        rows = [each for measured in self.tables(table) for each in measured.rows if each.id == row]
        cells = [cell for each in rows for cell in each.cells if cell.ours is not None]
        wanted = (
            cell.ours for cell in cells if (cell.collection, cell.mode) == (collection, mode) and "@" in cell.measure
        )
        return next(wanted, None)

    def tables(self, name: str) -> list[ReproducedTable]:
        """Return the results of a table, once for each protocol; none if it was not requested."""
        return [table for table in self.report.tables if table.id == name]


@dataclass(frozen=True)
class Shown:
    """The content under an exhibit's title."""

    blocks: Sequence[Block]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Pictures by their name beside the page."""


class Exhibit(ABC):
    """One table or figure."""

    flags: ClassVar[str] = ""
    """Further flags of the command that brings ours into it."""

    def __init__(self, name: str, place: str, title: str) -> None:
        """Name an exhibit."""
        self.name, self.place, self.title = name, place, title

    def command(self, job: ReproduceJob) -> str:
        """Return the command line that brings ours into it."""
        flags = f"{self.flags} " if self.flags else ""
        return f"python jobs/reproduce.py --tables {self.name} {flags}--output {job.output}"

    def lacks(self, findings: Findings) -> list[str]:
        """Return what ours needs; empty if it is complete."""
        return []

    @abstractmethod
    def show(self, findings: Findings) -> Shown:
        """Return what the page has."""

    def picture(self, findings: Findings, caption: str, png: bytes, *below: Block) -> Shown:
        """Return a drawn figure, the blocks below it, and what ours lacks."""
        picture = Picture(f"{self.name}.png", self.place, caption)
        return Shown([picture, *below, *self.lacking(findings)], {picture.file: png})

    def lacking(self, findings: Findings) -> list[str]:
        """Return a paragraph on what ours lacks; none where it is whole."""
        reasons = self.lacks(findings)
        return [f"Ours lacks: {'; '.join(reasons)}."] if reasons else []
