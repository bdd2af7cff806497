"""Tables as text, for the terminal and for Markdown: numbers to the right, words to the left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Cell: TypeAlias = str | int | float


def format_table(rows: Sequence[Sequence[Cell]], columns: Sequence[str]) -> str:
    """Return an aligned plain-text table, without a newline at its end; floats have 4 decimals.

    Args:
        rows: one cell per column.
        columns: headings.
    """
    lines = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    right = _numeric(rows, len(columns))
    widths = [max(len(line[c]) for line in lines) for c in range(len(columns))]
    lines.insert(1, ["-" * width for width in widths])
    aligned = (
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def markdown_table(rows: Sequence[Sequence[Cell]], columns: Sequence[str]) -> str:
    """Return a Markdown table, without a newline at its end; floats have 4 decimals."""
    right = _numeric(rows, len(columns))
    lines = [list(columns), ["---:" if to_right else ":---" for to_right in right]]
    lines += [[_escaped(_text(cell)) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(cell: Cell) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _escaped(text: str) -> str:
    """Keep the text in its cell and out of HTML."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _numeric(rows: Sequence[Sequence[Cell]], n_columns: int) -> list[bool]:
    return [bool(rows) and all(not isinstance(row[c], str) for row in rows) for c in range(n_columns)]
