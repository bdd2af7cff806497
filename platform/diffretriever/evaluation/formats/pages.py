"""Pages of tables, pictures and text in Markdown, LaTeX and HTML. Pandas lays out the tables of the last two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from diffretriever.core.files import write_text
from diffretriever.evaluation.formats.tables import signed
from diffretriever.schemas.locations import StorePath

NO_VALUE = "\N{EM DASH}"
"""What the paper prints where a system has no such score."""
SUFFIXES = ("md", "tex", "html")

_STEPS = (0.005, 0.015, 0.03)
"""Differences from which a cell is shaded, lightly to darkly; half of a published figure's last digit is .0005."""
_LONG_TEXT = 60
"""Characters of a cell above which LaTeX breaks its lines."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell with emphasis."""

    text: str
    marks: str = ""
    """Signs of significance, printed raised."""
    bold: bool = False
    underlined: bool = False
    difference: float | None = None
    """Ours less the paper's, in a cell of ours."""

    @property
    def shade(self) -> str:
        """Name of the colour: `above1` to `above3` and `below1` to `below3`; empty for a small difference."""
        steps = sum(round(abs(self.difference or 0.0), 3) >= step for step in _STEPS)
        return f"{'above' if (self.difference or 0.0) > 0 else 'below'}{steps}" if steps else ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption.

    Attributes:
        title: such as `Table 2`.
        caption: a sentence.
        frame: cells are `TableCell` or text; levels of the columns are rows of the head.
        n_labels: leading columns that are labels. A label is printed once where it and those before it stay the same.
        notes: sentences below.
        rules: rows, from 0, with a line above.
    """

    title: str
    caption: str
    frame: pd.DataFrame
    n_labels: int = 1
    notes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()

    def cells(self) -> list[list[TableCell]]:
        """Return the rows, without the labels that repeat those of the row above."""
        rows = [
            [cell if isinstance(cell, TableCell) else TableCell(str(cell)) for cell in row]
            for row in self.frame.itertuples(index=False, name=None)
        ]
        blank = TableCell("")
        # The last label names a row, so it is never left out.
        same = [
            next((c for c in range(self.n_labels - 1) if row[c] != above[c]), max(self.n_labels - 1, 0))
            for above, row in pairwise(rows)
        ]
        return [[*[blank] * n, *row[n:]] for n, row in zip([0, *same], rows, strict=False)]


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


Block: TypeAlias = Table | Picture | Command | str
"""A table, a figure, a command or a paragraph of plain text."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block] = ()


def write_pages(folder: Path | StorePath, name: str, title: str, sections: Sequence[Section]) -> list[str]:
    """Write a page in every format, and return the names of the files.

    Args:
        folder: of the page and its pictures.
        name: of the files, without the suffix.
        title: of the page.
        sections: in order.
    """
    for suffix, page in zip(SUFFIXES, (markdown_page, latex_page, html_page), strict=True):
        write_text(folder / f"{name}.{suffix}", page(title, sections))
    return [f"{name}.{suffix}" for suffix in SUFFIXES]


def markdown_page(title: str, sections: Sequence[Section]) -> str:
    """Return a page in GitHub's Markdown."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *map(_markdown, section.blocks)]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Picture):
        return f"![{block.title}]({block.file})\n\n**{block.title}.** {_markdown_text(block.caption)}"
    if isinstance(block, Command):
        return f"```sh\n{block.text}\n```"
    if isinstance(block, str):
        return _markdown_text(block)
    # Markdown has no columns under several heads: a column has all heads above it.
    heads = [[head] if isinstance(head, str) else head for head in block.frame.columns]
    lines = [[_markdown_text(" ".join(dict.fromkeys(filter(None, head)))) for head in heads]]
    lines.append(["---" if c < block.n_labels else "---:" for c in range(len(heads))])
    lines += [[_markdown_cell(cell) for cell in row] for row in block.cells()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([f"**{block.title}.** {block.caption}".rstrip(), table, *map(_markdown_text, block.notes)])


def _markdown_cell(cell: TableCell) -> str:
    text = _markdown_text(cell.text)
    text = f"<u>{text}</u>" if cell.underlined else text
    text = f"**{text}**" if cell.bold and text else text
    # Signs such as a dagger are raised by themselves.
    text += f"<sup>{cell.marks}</sup>" if cell.marks.isalpha() else _markdown_text(cell.marks)
    return text if cell.difference is None else f"{text} ({signed(cell.difference)})"


def _markdown_text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


_COLOURS = {
    "above1": "e4edf6", "above2": "bfd6ea", "above3": "8fb6da",
    "below1": "fbebdd", "below2": "f4cda8", "below3": "e8a569",
}  # fmt: skip
"""Ours above the paper's figure is blue, below it orange; the darker, the farther."""
_STYLE = """
body { font: 15px/1.5 Georgia, serif; color: #22272e; max-width: 1340px; margin: 2em auto; padding: 0 1.2em; }
h1, h2 { font-family: Helvetica, Arial, sans-serif; }
nav { columns: 2; font-size: .9em; } nav a { display: block; }
figure { margin: .6em 0 1.4em; overflow-x: auto; } img { max-width: 100%; }
figcaption, .notes { font-size: .86em; color: #4a5461; }
table { border-collapse: collapse; border-block: 2px solid; font-size: .84em; }
td, th { padding: .12em .55em; max-width: 40em; }
thead tr:last-child > th { border-bottom: 1px solid; } tr:has(.rule) > td { border-top: 1px solid; }
td:has(.label) { text-align: left; }
pre { font-size: .84em; background: #f3f5f7; padding: .5em .8em; overflow-x: auto; }
"""


def html_page(title: str, sections: Sequence[Section]) -> str:
    """Return a page for a browser, which needs nothing but its pictures."""
    shades = "\n".join(f".{name} {{ background: #{colour}; }}" for name, colour in _COLOURS.items())
    links = "\n".join(f'<a href="#s{n}">{escape(section.title)}</a>' for n, section in enumerate(sections))
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{shades}\n</style>\n</head>\n<body>",
        f"<h1>{escape(title)}</h1>\n<nav>\n{links}\n</nav>",
    ]
    for n, section in enumerate(sections):
        parts += [f'<h2 id="s{n}">{escape(section.title)}</h2>', *map(html_block, section.blocks)]
    return "\n".join([*parts, "</body>", "</html>"]) + "\n"


def html_block(block: Block) -> str:
    """Return one block of a page."""
    if isinstance(block, Command):
        return f"<pre>{escape(block.text)}</pre>"
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    caption = f"<figcaption><b>{escape(block.title)}.</b> {escape(block.caption)}</figcaption>"
    if isinstance(block, Picture):
        return f'<figure><img src="{escape(block.file)}" alt="{escape(block.title)}">\n{caption}</figure>'
    rows = [[_html_cell(cell, c < block.n_labels) for c, cell in enumerate(row)] for row in block.cells()]
    for row in block.rules:
        rows[row][0] = f'<span class="rule"></span>{rows[row][0]}'
    style = pd.DataFrame(rows, columns=block.frame.columns).style.hide(axis="index")
    table = style.format_index(escape="html", axis=1).to_html(exclude_styles=True)
    notes = "".join(f'<p class="notes">{escape(note)}</p>' for note in block.notes)
    return f"<figure>\n{caption}\n{table}{notes}</figure>"


def _html_cell(cell: TableCell, is_label: bool) -> str:  # noqa: FBT001 (one caller)
    text = escape(cell.text)
    text = f"<u>{text}</u>" if cell.underlined else text
    text = f"<b>{text}</b>" if cell.bold and text else text
    text += f"<sup>{escape(cell.marks)}</sup>" if cell.marks else ""
    text += f" <small>{signed(cell.difference)}</small>" if cell.difference is not None else ""
    name = "label" if is_label else cell.shade
    return f'<span class="{name}">{text}</span>' if name else text


_PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[margin=2cm]{geometry}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[table]{xcolor}
\usepackage{adjustbox,amsmath,booktabs,float,graphicx}"""
_SYMBOLS = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "\N{EM DASH}": "---", "\N{EN DASH}": "--", "\N{MINUS SIGN}": "$-$", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{RIGHTWARDS ARROW}": r"$\to$", "\N{LESS-THAN OR EQUAL TO}": r"$\leq$", "\N{DAGGER}": r"$\dagger$",
    "\N{DOUBLE DAGGER}": r"$\ddagger$", "\N{GREEK CAPITAL LETTER DELTA}": r"$\Delta$", "\N{DIVIDES}": r"$\mid$",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "\N{GREEK SMALL LETTER TAU}": r"$\tau$", "\N{BLACK STAR}": r"$\star$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "\N{MIDDLE DOT}": r"$\cdot$", "\N{ALMOST EQUAL TO}": r"$\approx$",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``", "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
})  # fmt: skip


def latex_page(title: str, sections: Sequence[Section]) -> str:
    """Return a document whose tables can be taken out one by one."""
    colours = "\n".join(rf"\definecolor{{{name}}}{{HTML}}{{{colour.upper()}}}" for name, colour in _COLOURS.items())
    parts = [f"{_PREAMBLE}\n{colours}\n\\begin{{document}}", rf"\section*{{{_latex_text(title)}}}"]
    for section in sections:
        parts += [rf"\subsection*{{{_latex_text(section.title)}}}", *map(_latex, section.blocks)]
    return "\n\n".join([*parts, r"\clearpage", r"\end{document}"]) + "\n"


def _latex(block: Block) -> str:
    if isinstance(block, Command):
        return f"\\begin{{verbatim}}\n{block.text}\n\\end{{verbatim}}"
    if isinstance(block, str):
        return rf"\noindent {_latex_text(block)}"
    if isinstance(block, Picture):
        shown = rf"\noindent\includegraphics[width=\textwidth]{{{block.file}}}"
        return f"{shown}\n\n{{\\footnotesize {_latex_text(f'{block.title}. {block.caption}')}\\par}}"
    rows = [[_latex_cell(cell) for cell in row] for row in block.cells()]
    for row in block.rules:
        rows[row][0] = f"\\midrule\n{rows[row][0]}"
    style = pd.DataFrame(rows, columns=block.frame.columns).style.hide(axis="index")
    columns = "l" * block.n_labels + "c" * (len(block.frame.columns) - block.n_labels)
    table = style.format_index(_latex_text, axis=1).to_latex(hrules=True, column_format=columns, multicol_align="c")
    caption = " ".join(note if note.endswith(".") else f"{note}." for note in (block.caption, *block.notes) if note)
    return "\n".join(
        [
            r"\begin{table}[H]", r"\centering\small\setlength{\tabcolsep}{3pt}",
            rf"{{\footnotesize {_latex_text(f'{block.title}. {caption}')}\par}}\medskip",
            r"\begin{adjustbox}{max width=\textwidth}", table.rstrip(), r"\end{adjustbox}", r"\end{table}",
        ]
    )  # fmt: skip


def _latex_cell(cell: TableCell) -> str:
    text = _latex_text(cell.text)
    text = rf"\textbf{{{text}}}" if cell.bold and text else text
    text = rf"\underline{{{text}}}" if cell.underlined else text
    text += rf"\textsuperscript{{{_latex_text(cell.marks)}}}" if cell.marks else ""
    text += rf" {{\tiny {_latex_text(signed(cell.difference))}}}" if cell.difference is not None else ""
    text = rf"\parbox[t]{{.42\textwidth}}{{{text}}}" if len(cell.text) > _LONG_TEXT else text
    return rf"\cellcolor{{{cell.shade}}}{text}" if cell.shade else text


def _latex_text(text: str) -> str:
    return " ".join(text.split()).translate(_SYMBOLS)
