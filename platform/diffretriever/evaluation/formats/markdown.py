"""Markdown: no spans and no shades, so heads are written out in every column and differences in brackets."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.evaluation.formats.base import Format, Grid, GridCell, Picture, Section, placed
from diffretriever.evaluation.formats.tables import signed


class MarkdownFormat(Format):
    """GitHub's Markdown."""

    suffix = "md"

    def page(self, title: str, sections: Sequence[Section]) -> str:
        """Return a whole file."""
        parts = [f"# {title}"]
        for section in sections:
            parts += [f"## {section.title}", *map(self.block, section.blocks)]
        return "\n\n".join(parts) + "\n"

    def table(self, grid: Grid) -> str:
        """Return one table, with a label only in the first row that it covers."""
        lines = [_heads(grid), ["---" if c < grid.n_labels else "---:" for c in range(grid.n_columns)]]
        rows = placed(grid.body, grid.n_columns)
        lines += [["" if cell is None else _shown(cell) for cell in row] for row in rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        caption = f"**{grid.title}.** {grid.caption}".rstrip()
        return "\n\n".join([caption, text, *(_escaped(note) for note in grid.notes)])

    def picture(self, picture: Picture) -> str:
        """Return a figure with its caption."""
        return f"![{picture.title}]({picture.file})\n\n**{picture.title}.** {_escaped(picture.caption)}"

    def command(self, text: str) -> str:
        """Return a command line."""
        return f"```sh\n{text}\n```"

    def paragraph(self, text: str) -> str:
        """Return plain text."""
        return _escaped(text)


def _heads(grid: Grid) -> list[str]:
    """Return a head for each column: the group's and its own where both are there."""
    heads = [""] * grid.n_columns
    for row in placed(grid.head, grid.n_columns):
        above: list[str] = []
        for column, cell in enumerate(row):
            if cell is not None:
                above = [cell.text] * cell.columns
            text = above.pop() if above else ""
            if text and text != heads[column]:
                heads[column] = f"{heads[column]} {_escaped(text)}".strip()
    return heads


def _shown(cell: GridCell) -> str:
    text = _escaped(cell.text)
    if cell.underlined:
        text = f"<u>{text}</u>"
    if cell.bold and text:
        text = f"**{text}**"
    # Signs such as a dagger are raised by themselves.
    text += f"<sup>{cell.marks}</sup>" if cell.marks.isalpha() else _escaped(cell.marks)
    return text if cell.difference is None else f"{text} ({signed(cell.difference)})"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
