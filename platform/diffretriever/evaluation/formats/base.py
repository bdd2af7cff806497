"""What every format can write: a page of sections, in which stand tables, pictures and text.

A table is a grid as it lies on a page, whatever that is written in: cells with spans, emphasis, marks and shades.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["head", "label", "text", "paper", "ours"]
"""`text` is long and may go over several lines."""
Rule: TypeAlias = Literal["none", "part", "whole"]

NO_VALUE = "\N{EM DASH}"
"""What the paper prints where a system has no such score."""

_STEPS = (0.005, 0.015, 0.03)
"""Differences from which a cell is shaded, lightly to darkly; half of a published figure's last digit is .0005."""


@dataclass(frozen=True, slots=True)
class GridCell:
    """A cell and what it covers."""

    text: str = ""
    role: Role = "label"
    columns: int = 1
    rows: int = 1
    marks: str = ""
    """Signs of significance, printed raised."""
    bold: bool = False
    underlined: bool = False
    upright: bool = False
    """Turned by a quarter, as the paper prints the name of a block."""
    difference: float | None = None
    """Ours less the paper's, in a cell of ours."""

    @property
    def shade(self) -> int:
        """Return how far ours is from the paper's: 0 for close, up to 3, below zero where ours is lower."""
        if self.difference is None:
            return 0
        # Both are seen with three decimals.
        steps = sum(round(abs(self.difference), 3) >= step for step in _STEPS)
        return steps if self.difference > 0 else -steps


@dataclass(frozen=True, slots=True)
class GridRow:
    """The cells that begin in a row."""

    cells: tuple[GridCell, ...]
    rule: Rule = "none"
    """The line above it; `part` leaves out the first column, which names a block."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One table."""

    id: str
    title: str
    """Such as `Table 2`."""
    caption: str
    n_labels: int
    """Columns that are labels; the others are figures."""
    head: tuple[GridRow, ...]
    body: tuple[GridRow, ...]
    notes: tuple[str, ...] = ()
    divided: frozenset[int] = frozenset()
    """Columns, from 0, at whose right side a vertical line stands."""

    @property
    def n_columns(self) -> int:
        """Return how many columns the table has."""
        return sum(cell.columns for cell in self.head[0].cells)


def placed(rows: Sequence[GridRow], n_columns: int) -> Iterator[list[GridCell | None]]:
    """Yield, row by row, the cell that begins in each column; None where a cell from above or the left covers it.

    Raises:
        ValueError: the cells do not fill the table.
    """
    covered = [0] * n_columns
    for row in rows:
        line: list[GridCell | None] = [None] * n_columns
        column = 0
        for cell in row.cells:
            while column < n_columns and covered[column]:
                column += 1
            if column + cell.columns > n_columns:
                raise ValueError(f"a row has too many cells: '{cell.text}' has no place")
            line[column] = cell
            for place in range(column, column + cell.columns):
                covered[place] = cell.rows
            column += cell.columns
        if not all(covered):
            raise ValueError(f"a row leaves column {covered.index(0)} empty")
        covered = [rows_left - 1 for rows_left in covered]
        yield line


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure."""

    file: str
    """Relative to the page."""
    title: str
    """Such as `Figure 4`."""
    caption: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line."""

    text: str


Block: TypeAlias = Grid | Picture | Command | str
"""A table, a figure, a command or a paragraph of plain text."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


class Format(ABC):
    """One way to write a page."""

    suffix: str
    """Of the file, without the dot."""

    @abstractmethod
    def page(self, title: str, sections: Sequence[Section]) -> str:
        """Return a whole file."""

    @abstractmethod
    def table(self, grid: Grid) -> str:
        """Return one table."""

    @abstractmethod
    def picture(self, picture: Picture) -> str:
        """Return a figure with its caption."""

    @abstractmethod
    def command(self, text: str) -> str:
        """Return a command line."""

    @abstractmethod
    def paragraph(self, text: str) -> str:
        """Return plain text."""

    def block(self, block: Block) -> str:
        """Return what stands under a heading."""
        if isinstance(block, Grid):
            return self.table(block)
        if isinstance(block, Picture):
            return self.picture(block)
        return self.command(block.text) if isinstance(block, Command) else self.paragraph(block)
