"""LaTeX by booktabs, as the paper is set: a whole document whose tables can be taken out one by one."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.evaluation.formats.base import Format, Grid, GridCell, GridRow, Picture, Section, placed
from diffretriever.evaluation.formats.tables import signed

_PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[margin=2cm]{geometry}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[table]{xcolor}
\usepackage{amsmath,booktabs,float,graphicx,multirow}
% Ours in the tables: above the paper's figure blue, below it orange; the darker, the farther.
\definecolor{above1}{HTML}{E4EDF6}
\definecolor{above2}{HTML}{BFD6EA}
\definecolor{above3}{HTML}{8FB6DA}
\definecolor{below1}{HTML}{FBEBDD}
\definecolor{below2}{HTML}{F4CDA8}
\definecolor{below3}{HTML}{E8A569}
\begin{document}"""

_SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "\N{EM DASH}": "---", "\N{EN DASH}": "--", "\N{MINUS SIGN}": "$-$", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{RIGHTWARDS ARROW}": r"$\to$", "\N{LESS-THAN OR EQUAL TO}": r"$\leq$", "\N{DAGGER}": r"$\dagger$",
    "\N{DOUBLE DAGGER}": r"$\ddagger$", "\N{GREEK CAPITAL LETTER DELTA}": r"$\Delta$", "\N{DIVIDES}": r"$\mid$",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "\N{GREEK SMALL LETTER TAU}": r"$\tau$", "\N{BLACK STAR}": r"$\star$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "\N{MIDDLE DOT}": r"$\cdot$", "\N{ALMOST EQUAL TO}": r"$\approx$",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``", "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
}  # fmt: skip


class LatexFormat(Format):
    """A document of its own."""

    suffix = "tex"

    def page(self, title: str, sections: Sequence[Section]) -> str:
        """Return a whole file."""
        parts = [_PREAMBLE, rf"\section*{{{_escaped(title)}}}"]
        for section in sections:
            parts += [rf"\subsection*{{{_escaped(section.title)}}}", *map(self.block, section.blocks)]
        return "\n\n".join([*parts, r"\clearpage", r"\end{document}"]) + "\n"

    def table(self, grid: Grid) -> str:
        """Return one table, scaled to the width of the text where it is wide."""
        letters = ["l"] * grid.n_labels + ["c"] * (grid.n_columns - grid.n_labels)
        columns = "".join(_ruled(letter, is_ruled=n in grid.divided) for n, letter in enumerate(letters))
        lines = [rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule", *_rows(grid.head, grid, is_head=True)]
        lines += [r"\midrule", *_rows(grid.body, grid, is_head=False), r"\bottomrule", r"\end{tabular}"]
        caption = f"{_escaped(grid.title)}. {_escaped(' '.join([grid.caption, *map(_sentence, grid.notes)]))}"
        inside = "\n".join(lines)
        if grid.n_columns > _NARROW:
            inside = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{inside}%\n}}"
        return "\n".join(
            [
                r"\begin{table}[H]", r"\centering\small\setlength{\tabcolsep}{3pt}",
                rf"{{\footnotesize {caption.strip()}\par}}\medskip",
                inside, r"\end{table}",
            ]
        )  # fmt: skip

    def picture(self, picture: Picture) -> str:
        """Return a figure with its caption."""
        shown = rf"\noindent\includegraphics[width=\textwidth]{{{picture.file}}}"
        return f"{shown}\n\n{{\\footnotesize {_escaped(picture.title)}. {_escaped(picture.caption)}\\par}}"

    def command(self, text: str) -> str:
        """Return a command line."""
        return f"\\begin{{verbatim}}\n{text}\n\\end{{verbatim}}"

    def paragraph(self, text: str) -> str:
        """Return plain text."""
        return rf"\noindent {_escaped(text)}"


_NARROW = 9
"""Columns that fit the width of the text."""


def _rows(rows: Sequence[GridRow], grid: Grid, *, is_head: bool) -> list[str]:
    lines: list[str] = []
    grids = list(placed(rows, grid.n_columns))
    for number, (row, line) in enumerate(zip(rows, grids, strict=True)):
        begins = next(n for n, cell in enumerate(line) if cell is not None)
        if row.rule == "part":
            lines.append(rf"\cmidrule(lr){{2-{grid.n_columns}}}")
        elif row.rule == "whole":
            # A line would cross the label of several rows that it begins in.
            lines.append(rf"\cmidrule{{{begins + 1}-{grid.n_columns}}}" if begins else r"\midrule")
        lines.append(" & ".join(_cells(line, grid, is_head=is_head)) + r" \\")
        if is_head and number + 1 < len(rows):
            lines += _group_rules(line)
    return lines


def _cells(line: Sequence[GridCell | None], grid: Grid, *, is_head: bool) -> list[str]:
    cells, skip = [], 0
    for column, cell in enumerate(line):
        if skip:
            skip -= 1
        elif cell is None:
            cells.append("")
        else:
            skip = cell.columns - 1
            is_ruled = column + cell.columns - 1 in grid.divided
            cells.append(_spread_out(cell, _shown(cell), is_head=is_head, is_ruled=is_ruled))
    return cells


def _group_rules(line: Sequence[GridCell | None]) -> list[str]:
    """Return the short lines under heads that cover several columns."""
    found = [(n + 1, cell.columns) for n, cell in enumerate(line) if cell is not None and cell.columns > 1]
    rules = " ".join(rf"\cmidrule(lr){{{first}-{first + width - 1}}}" for first, width in found)
    return [rules] if rules else []


def _shown(cell: GridCell) -> str:
    text = _escaped(cell.text)
    if cell.bold and text:
        text = rf"\textbf{{{text}}}"
    if cell.underlined:
        text = rf"\underline{{{text}}}"
    if cell.marks:
        text += rf"$^{{{''.join(map(_sign, cell.marks))}}}$"
    if cell.difference is not None:
        text += rf" {{\tiny {_escaped(signed(cell.difference))}}}"
    if cell.shade:
        text = rf"\cellcolor{{{'above' if cell.shade > 0 else 'below'}{abs(cell.shade)}}}{text}"
    return text


def _spread_out(cell: GridCell, text: str, *, is_head: bool, is_ruled: bool) -> str:
    """Return the text in the columns and rows that the cell covers."""
    if cell.role == "text":
        text = rf"\parbox[t]{{.42\textwidth}}{{{text}}}"
    if cell.upright:
        text = rf"\rotatebox[origin=c]{{90}}{{{text}}}"
    if cell.rows > 1:
        text = rf"\multirow{{{cell.rows}}}{{*}}{{{text}}}"
    if cell.columns > 1:
        text = rf"\multicolumn{{{cell.columns}}}{{{_ruled('c', is_ruled=is_ruled)}}}{{{text}}}"
    elif is_head and cell.rows == 1:
        text = rf"\multicolumn{{1}}{{{_ruled('c', is_ruled=is_ruled)}}}{{{text}}}"
    return text


def _ruled(letter: str, *, is_ruled: bool) -> str:
    """Return the type of a column, with the vertical line at its right if it has one."""
    return f"{letter}|" if is_ruled else letter


def _sign(sign: str) -> str:
    return {"\N{DAGGER}": r"\dagger", "\N{DOUBLE DAGGER}": r"\ddagger"}.get(sign, sign)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _escaped(text: str) -> str:
    return "".join(_SYMBOLS.get(letter, letter) for letter in " ".join(text.split()))
