"""The figures of this benchmark and how they are laid out."""

from __future__ import annotations

import statistics
from typing import Literal, TypeAlias

from diffretriever.schemas.base import Model

Law: TypeAlias = Literal["zipf", "uniform"]
COLUMNS = ("", "postings", "scipy columns", "scipy rows, as today", "goal")
_P50_GOAL = 2.5
_P50_GOAL_PASSAGES = 500_000
_BYTES_GOAL = 7.0


class Latencies(Model):
    """Milliseconds, one a query."""

    wall: list[float]
    """By the clock."""
    processor: list[float]
    """Of the processor: nearly the same, unless other programs run."""


class Built(Model):
    """What building took and gave."""

    seconds: float
    """All segments together; making up the passages is not counted."""
    peak_mb: float
    """Most memory of the process, mapped files included."""
    postings: int
    """Impacts of all passages."""
    resident: float
    """Bytes a posting of the files that queries read."""
    disk: float
    """Bytes a posting of all files."""


class Alone(Model):
    """A process that only searches."""

    ours: Latencies
    """Of the postings."""
    peak_mb: float
    """Most memory of the process, mapped files included."""
    mapped: float
    """Bytes a posting of the mapped files that were in memory at the end; the system takes them back when it must."""


class Beside(Model):
    """Ways to the same results, in turn."""

    ours: Latencies
    """Postings."""
    columns: Latencies
    """scipy: the query's columns of a CSC matrix times its weights, then a partial sort."""
    today: Latencies
    """The exact search's own arithmetic: scipy products of batches of rows, merged by `TopK`."""


class Figures(Model):
    """Of one size and law."""

    passages: int
    """How many."""
    law: Law
    """How terms are drawn."""
    built: Built
    """Building."""
    alone: Alone
    """Searching in a process of its own."""
    beside: Beside
    """Searching with scipy beside it."""

    def rows(self) -> list[list[str]]:
        """Return the rows of the printed table."""
        sides = [self.beside.ours, self.beside.columns, self.beside.today]
        p50 = [statistics.median(side.wall) for side in sides]
        goal = _verdict(p50[0], _P50_GOAL) if self.passages == _P50_GOAL_PASSAGES else ""
        processor = [statistics.median(side.processor) for side in sides]
        return [
            [f"{self.passages:,} passages, {self.law}", "", "", "", ""],
            _row("  p50, ms", p50, goal),
            _row("  p50, ms of the processor", processor, ""),
            _row("  p50, ratio (processor)", [p / processor[0] for p in processor], ""),
            _row("  p99, ms", [_p99(side.wall) for side in sides[:2]], ""),
            _row("  p99, ms of the processor", [_p99(side.processor) for side in sides[:2]], ""),
            _row("  bytes a posting, read", [self.built.resident], _verdict(self.built.resident, _BYTES_GOAL)),
            _row("  bytes a posting, mapped after all queries", [self.alone.mapped], ""),
            _row("  bytes a posting, on disk", [self.built.disk], ""),
            _row("  build, s", [self.built.seconds], ""),
            _row("  peak MB, build", [self.built.peak_mb], ""),
            _row("  peak MB, search", [self.alone.peak_mb], ""),
        ]


def _row(name: str, values: list[float], goal: str) -> list[str]:
    cells = [f"{value:.0f}" if value >= 100 else f"{value:.2f}" for value in values]
    return [name, *cells, *[""] * (3 - len(cells)), goal]


def _verdict(value: float, goal: float) -> str:
    return f"<= {goal:.1f}, {'met' if value <= goal else 'MISSED'}"


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]
