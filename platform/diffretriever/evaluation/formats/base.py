"""What every format can write: a page of sections, in which stand tables, pictures and text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from diffretriever.evaluation.formats.grid import Grid


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
