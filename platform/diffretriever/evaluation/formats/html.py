"""HTML: one page that needs nothing but its pictures; shades say how far ours is from the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from diffretriever.evaluation.formats.base import Format, Grid, GridCell, GridRow, Picture, Section, placed
from diffretriever.evaluation.formats.tables import signed

_STYLE = """
body { font: 15px/1.5 Georgia, 'Times New Roman', serif; color: #22272e; max-width: 1340px; margin: 2em auto;
  padding: 0 1.2em; }
h1, h2 { font-family: Helvetica, Arial, sans-serif; line-height: 1.2; }
h1 { font-size: 1.6em; } h2 { font-size: 1.15em; margin: 2.4em 0 .4em; }
nav { columns: 2; font-size: .9em; } nav a { display: block; color: #2d5b8c; }
figure { margin: .6em 0 1.4em; } .wide { overflow-x: auto; } img { max-width: 100%; }
figcaption, .notes { font-size: .86em; color: #4a5461; margin: .2em 0 .5em; }
table { border-collapse: collapse; border-top: 2px solid #22272e; border-bottom: 2px solid #22272e; font-size: .84em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
td, th { padding: .12em .55em; text-align: center; font-weight: normal; }
thead tr:last-child > *, thead th[rowspan] { border-bottom: 1px solid #22272e; }
thead th[colspan] { border-bottom: 1px solid #b9c0c8; }
pre { font-size: .84em; background: #f3f5f7; padding: .5em .8em; overflow-x: auto; }
.text { text-align: left; white-space: normal; width: 45%; }
.label { text-align: left; vertical-align: middle; } .upright { writing-mode: vertical-rl; rotate: 180deg; }
tr.whole > * { border-top: 1px solid #22272e; } tr.part > *:not(.block) { border-top: 1px solid #d5dae0; }
.divided { border-right: 1px solid #22272e; }
.ours { color: #1d4f84; } .ours small { color: #4a5461; margin-left: .25em; } sup { line-height: 0; }
.above1 { background: #e4edf6; } .above2 { background: #bfd6ea; } .above3 { background: #8fb6da; }
.below1 { background: #fbebdd; } .below2 { background: #f4cda8; } .below3 { background: #e8a569; }
"""


class HtmlFormat(Format):
    """A page for a browser."""

    suffix = "html"

    def page(self, title: str, sections: Sequence[Section]) -> str:
        """Return a whole file."""
        links = "\n".join(f'<a href="#s{n}">{escape(section.title)}</a>' for n, section in enumerate(sections))
        parts = [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>\n<nav>\n{links}\n</nav>",
        ]
        for n, section in enumerate(sections):
            parts += [f'<h2 id="s{n}">{escape(section.title)}</h2>', *map(self.block, section.blocks)]
        return "\n".join([*parts, "</body>", "</html>"]) + "\n"

    def table(self, grid: Grid) -> str:
        """Return one table with its caption."""
        head, body = (
            "\n".join(_row(row, line, grid, tag) for row, line in zip(rows, placed(rows, grid.n_columns), strict=True))
            for rows, tag in ((grid.head, "th"), (grid.body, "td"))
        )
        caption = f"<figcaption><b>{escape(grid.title)}.</b> {escape(grid.caption)}</figcaption>"
        notes = "".join(f'<p class="notes">{escape(note)}</p>' for note in grid.notes)
        inside = f"<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>"
        wide = f'<div class="wide"><table>\n{inside}\n</table></div>'
        return f'<figure id="{grid.id}">\n{caption}\n{wide}\n{notes}</figure>'

    def picture(self, picture: Picture) -> str:
        """Return a figure with its caption."""
        caption = f"<figcaption><b>{escape(picture.title)}.</b> {escape(picture.caption)}</figcaption>"
        return f'<figure><img src="{escape(picture.file)}" alt="{escape(picture.title)}">\n{caption}</figure>'

    def command(self, text: str) -> str:
        """Return a command line."""
        return f"<pre>{escape(text)}</pre>"

    def paragraph(self, text: str) -> str:
        """Return plain text."""
        return f"<p>{escape(text)}</p>"


def _row(row: GridRow, line: Sequence[GridCell | None], grid: Grid, tag: str) -> str:
    cells = "".join(_cell(cell, column, grid, tag) for column, cell in enumerate(line) if cell is not None)
    rule = "" if row.rule == "none" else f' class="{row.rule}"'
    return f"<tr{rule}>{cells}</tr>"


def _cell(cell: GridCell, column: int, grid: Grid, tag: str) -> str:
    text = escape(cell.text)
    if cell.upright:
        text = f'<span class="upright">{text}</span>'
    if cell.underlined:
        text = f"<u>{text}</u>"
    if cell.bold and text:
        text = f"<b>{text}</b>"
    if cell.marks:
        text += f"<sup>{escape(cell.marks)}</sup>"
    if cell.difference is not None:
        text += f"<small>{signed(cell.difference)}</small>"
    classes = [cell.role, *(["block"] if column == 0 else [])]
    classes += ["divided"] if column + cell.columns - 1 in grid.divided else []
    if cell.shade:
        classes.append(f"{'above' if cell.shade > 0 else 'below'}{abs(cell.shade)}")
    spans = "".join(f' {name}="{n}"' for name, n in (("colspan", cell.columns), ("rowspan", cell.rows)) if n > 1)
    return f'<{tag} class="{" ".join(classes)}"{spans}>{text}</{tag}>'
