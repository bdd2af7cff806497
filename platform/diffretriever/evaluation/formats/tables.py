"""What reports are written of: tables for the terminal and for Markdown, numbers, the end of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import yaml

Cell: TypeAlias = str | int | float
Interval: TypeAlias = tuple[float, float]
"""Low and high end of a bootstrap 95% interval."""

NOTHING = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_SMALLEST_P = 0.001


def format_table(rows: Sequence[Sequence[Cell]], columns: Sequence[str]) -> str:
    """Return an aligned plain-text table, without a newline at its end: numbers right, floats with 4 decimals."""
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


def points(value: float) -> str:
    """Write a measure as tables of retrieval papers do, without the 0 before the point: .432."""
    text = f"{abs(value):.3f}"
    return (_MINUS if value < 0 and text != "0.000" else "") + text.removeprefix("0")


def signed(value: float) -> str:
    """Write a difference with its sign: +.012."""
    text = points(value)
    return text if text.startswith(_MINUS) else f"+{text}"


def between(interval: Interval) -> str:
    """Write an interval of differences: [+.004, +.020]."""
    return f"[{signed(interval[0])}, {signed(interval[1])}]"


def with_interval(value: float | None, interval: Interval | None) -> str:
    """Write a difference with its interval, or a dash where there is none."""
    return NOTHING if value is None or interval is None else f"{signed(value)} {between(interval)}"


def level_with_interval(value: float, interval: Interval) -> str:
    """Write a measure with its interval: .432 [.404, .460]."""
    return f"{points(value)} [{points(interval[0])}, {points(interval[1])}]"


def share(value: float | None) -> str:
    """Write a share in percent, or a dash where there is none."""
    return NOTHING if value is None else f"{100 * value:.0f}%".replace("-", _MINUS)


def p_value(p: float) -> str:
    """Write a p-value to three places; below .001 only that."""
    return f"<{points(_SMALLEST_P)}" if p < _SMALLEST_P else points(p)


def listed(numbers: Iterable[int]) -> str:
    """Write numbers one after another: 1, 2, 4."""
    return ", ".join(map(str, numbers))


def command_blocks(command: str, config: Mapping[str, Any] | None = None) -> list[str]:
    """Return the end of a page in Markdown: how to repeat it, and the resolved config where one is given."""
    blocks = ["## Command", f"```\n{command}\n```"]
    if config is None:
        return blocks
    return [
        *blocks,
        "<details><summary>Resolved config</summary>",
        f"```yaml\n{yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)}```",
        "</details>",
    ]
