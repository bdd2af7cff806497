"""The paper's usual table: a row for each system, a group of columns for each collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal, TypeAlias

from pydantic import Field

from diffretriever.evaluation.formats.base import NO_VALUE, Grid, GridCell, GridRow
from diffretriever.evaluation.formats.tables import points
from diffretriever.schemas.base import Model
from diffretriever.studies.reproduction.config import PublishedRow, PublishedTable
from diffretriever.studies.reproduction.layouts.marks import Marking, marks_of_ours
from diffretriever.studies.reproduction.report import ReproducedCell, ReproducedRow, ReproducedTable
from diffretriever.studies.reproduction.tables import load_table

RowField: TypeAlias = Literal["regime", "system", "backbone", "variant", "forward_passes"]
View: TypeAlias = Literal["beside", "ours"]
"""`beside`: under each row of the paper ours, where there is any. `ours`: ours alone, as the paper would print it."""
Cells: TypeAlias = dict[str, dict[str, tuple[str, ...]]]
"""Row → collection → modes."""

_PLAIN_HEADS: dict[str, RowField] = {"Method": "system", "Backbone": "backbone", "Variant": "variant"}
_OWN_HEADS: dict[str, RowField] = {"Method": "system", "Variant": "variant", "Fwd": "forward_passes"}
_MODE_TITLES = {"dense": "D", "sparse": "S", "hybrid": "H"}


class ColumnGroup(Model):
    """Collections under one title."""

    title: str
    collections: dict[str, str]
    """Collection → what the paper calls it."""


class SystemsLayout(Model):
    """How a table of systems is printed, with the paper's own emphasis and marks."""

    kind: Literal["systems"] = "systems"
    heads: dict[str, RowField]
    """Title of each column of labels → what stands in it. A label is printed once where it and those before it stay the
    same from row to row."""
    names: dict[str, str] = Field(default_factory=dict)
    """Label → what this table calls it."""
    block: RowField | None = None
    """What the upright label at the left names."""
    rules: RowField | tuple[str, ...] = ()
    """A line above each row where this changes, or above the rows with these ids."""
    columns: tuple[ColumnGroup, ...]
    modes: tuple[str, ...] = ()
    """Columns of each collection; none: one column, with the one score that a row has."""
    divided: bool = False
    """Whether vertical lines stand around the groups of columns."""
    short_rules: bool = False
    """Whether lines leave out the first column though it names no block."""
    parts: int = 1
    """How many tables, one below the other, the groups are shared out to."""
    best_within: tuple[RowField, ...] | None = None
    """Bold is the best of a column among rows that agree in these; None: nothing is bold."""
    best_of_all: bool = False
    """Whether the best of a whole column is underlined."""
    marking: Marking = Marking()
    bold: Cells = Field(default_factory=dict)
    """Figures that the paper prints bold."""
    underlined: Cells = Field(default_factory=dict)

    def grids(self, table: PublishedTable, measured: Sequence[ReproducedTable], view: View) -> Iterator[Grid]:
        """Yield the parts of the table; `measured` is what was run under each protocol.

        Raises:
            ValueError: a row of the table has a figure for which the layout has no column.
        """
        yield from _Drawing(self, table, measured, view).grids()


def plain_layout(table: PublishedTable) -> SystemsLayout:
    """Return the layout of a table that the paper does not print: every collection and mode that its rows have."""
    modes = [mode for mode in _MODE_TITLES if any(mode in f for row in table.rows for f in row.figures.values())]
    collections = dict.fromkeys(name for row in table.rows for name in row.figures)
    return SystemsLayout(
        heads=_PLAIN_HEADS if any(row.backbone for row in table.rows) else _OWN_HEADS,
        columns=tuple(ColumnGroup(title=name, collections={name: name}) for name in collections),
        modes=tuple(modes),
        rules="system",
        best_within=(),
    )


@dataclass(frozen=True)
class _Column:
    group: str
    title: str
    collection: str
    mode: str | None


@dataclass(frozen=True)
class _Line:
    """A printed line: a row of the paper, or ours."""

    row: PublishedRow
    source: str
    """`paper`, or ours with what it was run with."""
    measured: ReproducedRow | None
    """None in the paper's lines."""
    protocol: str | None = None
    """What ours was run under."""


class _Drawing:
    """One table being laid out."""

    def __init__(
        self, layout: SystemsLayout, table: PublishedTable, measured: Sequence[ReproducedTable], view: View
    ) -> None:
        self._layout, self._table, self._measured, self._view = layout, table, measured, view
        self._lines = [line for row in table.rows for line in self._lines_of(row)]
        self._has_ours = any(line.measured for line in self._lines)
        self._is_published = any(_is_published(row) for row in table.rows)
        self._shows_source = view == "beside" and self._has_ours and self._is_published
        self._columns = self._all_columns()
        self._ours_marks = {run.protocol: marks_of_ours(layout.marking, run) for run in measured}

    def grids(self) -> Iterator[Grid]:
        groups = [list(columns) for _, columns in groupby(self._columns, key=_group)]
        size = -(-len(groups) // self._layout.parts)
        for part in range(self._layout.parts):
            columns = [column for group in groups[part * size : (part + 1) * size] for column in group]
            yield self._grid(columns, part)

    def _grid(self, columns: list[_Column], part: int) -> Grid:
        title = self._table.place if self._is_published else "Ours"
        n_labels = len(self._layout.heads) + (self._layout.block is not None) + self._shows_source
        ends = accumulate((len(list(group)) for _, group in groupby(columns, key=_group)), initial=n_labels - 1)
        return Grid(
            id=self._table.id if part == 0 else f"{self._table.id}-{part + 1}",
            title=title if part == 0 else f"{title}, continued",
            caption=self._caption() if part == 0 else "",
            n_labels=n_labels,
            head=tuple(self._head(columns)),
            body=tuple(self._body(columns)),
            notes=(*self._layout.marking.notes(), *self._protocols()) if part == 0 else (),
            divided=frozenset(list(ends)[:-1]) if self._layout.divided else frozenset(),
        )

    def _caption(self) -> str:
        """Return the caption; that of a single run says its protocol."""
        return self._measured[0].caption if len(self._measured) == 1 else load_table(self._table.id).caption

    def _protocols(self) -> Iterator[str]:
        """Yield what each of several runs was under, which its caption has after the table's own words."""
        if len(self._measured) > 1:
            said = (run.caption.removeprefix(load_table(self._table.id).caption).strip() for run in self._measured)
            yield from filter(None, said)

    def _all_columns(self) -> list[_Column]:
        modes: tuple[str | None, ...] = self._layout.modes or (None,)
        columns = [
            _Column(group.title, title if mode is None else _MODE_TITLES[mode], collection, mode)
            for group in self._layout.columns
            for collection, title in group.collections.items()
            for mode in modes
        ]
        known = {(column.collection, column.mode) for column in columns}
        for row in self._table.rows:
            for collection, found in row.figures.items():
                for mode in found if self._layout.modes else [None]:
                    if (collection, mode) not in known:
                        raise ValueError(f"layout of {self._table.id}: row {row.id}: no column for {collection} {mode}")
        return columns

    def _lines_of(self, row: PublishedRow) -> list[_Line]:
        ours = [
            _Line(row, _source(run, found), found, run.protocol)
            for run in self._measured
            for found in run.rows
            if found.id == row.id and any(cell.ours is not None for cell in found.cells)
        ]
        if self._view == "ours" or (ours and not _is_published(row)):
            return ours
        return [_Line(row, "paper", None), *ours]

    def _head(self, columns: list[_Column]) -> Iterator[GridRow]:
        labels = [*([""] if self._layout.block else []), *self._layout.heads, *([""] if self._shows_source else [])]
        first = [GridCell(label, "head", rows=2) for label in labels]
        for group, members in groupby(columns, key=_group):
            first.append(GridCell(group, "head", columns=len(list(members))))
        yield GridRow(tuple(first))
        yield GridRow(tuple(GridCell(column.title, "head") for column in columns))

    def _body(self, columns: list[_Column]) -> Iterator[GridRow]:
        best = _Best(self._layout, self._lines, columns)
        above: _Line | None = None
        for place, line in enumerate(self._lines):
            cells = [*self._labels(place), *(self._cell(line, column, best) for column in columns)]
            yield GridRow(tuple(cells), self._rule(above, line))
            above = line

    def _rule(self, above: _Line | None, line: _Line) -> Literal["none", "part", "whole"]:
        if above is None or above.row is line.row:
            return "none"
        block, rules = self._layout.block, self._layout.rules
        if block is not None and getattr(above.row, block) != getattr(line.row, block):
            return "whole"
        if isinstance(rules, str):
            changed = getattr(above.row, rules) != getattr(line.row, rules)
        else:
            changed = line.row.id in rules
        if not changed:
            return "none"
        return "part" if block is not None or self._layout.short_rules else "whole"

    def _labels(self, place: int) -> Iterator[GridCell]:
        """Yield the labels that begin in this line."""
        line = self._lines[place]
        fields: list[RowField] = [*([self._layout.block] if self._layout.block else []), *self._layout.heads.values()]
        for n, field in enumerate(fields):
            same = [self._is_same(line, other, fields[: n + 1]) for other in self._lines]
            last_head = n == len(fields) - 1
            is_block = self._layout.block is not None and n == 0
            # Every row has its own last label, even where two rows would print the same.
            if last_head:
                same = [other.row is line.row for other in self._lines]
            if place > 0 and same[place - 1]:
                continue
            span = next((n for n, s in enumerate(same[place:]) if not s), len(self._lines) - place)
            text = self._text(line.row, field)
            stands_out = is_block or (field == "system" and text == "DiffRetriever" and self._has_others())
            yield GridCell(text, "label", rows=span, bold=stands_out, upright=is_block)
        if self._shows_source:
            yield GridCell(line.source, "ours" if line.measured else "paper")

    def _has_others(self) -> bool:
        return len({row.system for row in self._table.rows}) > 1

    @staticmethod
    def _is_same(line: _Line, other: _Line, fields: Sequence[RowField]) -> bool:
        return all(getattr(line.row, field) == getattr(other.row, field) for field in fields)

    def _text(self, row: PublishedRow, field: RowField) -> str:
        value = getattr(row, field)
        if value is None:
            return NO_VALUE
        text = self._layout.names.get(value, value)
        return text.capitalize() if field == "regime" else text

    def _cell(self, line: _Line, column: _Column, best: _Best) -> GridCell:
        mode = column.mode or _only_mode(line.row, column.collection)
        if mode is None or mode not in line.row.figures.get(column.collection, {}):
            return GridCell(NO_VALUE, "ours" if line.measured else "paper")
        if line.measured is None:
            value = _published(line.row, column.collection, mode)
            return GridCell(
                _shown(value),
                "paper",
                marks=self._layout.marking.printed.get(line.row.id, {}).get(column.collection, {}).get(mode, ""),
                bold=mode in self._layout.bold.get(line.row.id, {}).get(column.collection, ()),
                underlined=mode in self._layout.underlined.get(line.row.id, {}).get(column.collection, ()),
            )
        cell = _measured_cell(line.measured, column.collection, mode)
        if cell is None or cell.ours is None:
            return GridCell("", "ours")
        return GridCell(
            _shown(cell.ours),
            "ours",
            marks=self._ours_marks[line.protocol].get((line.row.id, column.collection, mode), ""),
            bold=best.is_bold(line, column),
            underlined=best.is_underlined(line, column),
            difference=cell.difference if self._view == "beside" else None,
        )


class _Best:
    """The best of ours in every column, ties included, as three decimals show them."""

    def __init__(self, layout: SystemsLayout, lines: Sequence[_Line], columns: Sequence[_Column]) -> None:
        self._layout = layout
        self._values = {
            (line.row.id, line.source, column): value
            for line in lines
            for column in columns
            if (value := _ours(line, column)) is not None
        }
        self._lines = [line for line in lines if line.measured is not None]

    def is_bold(self, line: _Line, column: _Column) -> bool:
        within = self._layout.best_within
        if within is None:
            return False
        rivals = [r for r in self._lines if all(getattr(r.row, f) == getattr(line.row, f) for f in within)]
        return self._is_best(line, column, [rival for rival in rivals if rival.protocol == line.protocol])

    def is_underlined(self, line: _Line, column: _Column) -> bool:
        own = [other for other in self._lines if other.protocol == line.protocol]
        return self._layout.best_of_all and self._is_best(line, column, own)

    def _is_best(self, line: _Line, column: _Column, rivals: Sequence[_Line]) -> bool:
        found = [self._values.get((rival.row.id, rival.source, column)) for rival in rivals]
        values = [value for value in found if value is not None]
        own = self._values.get((line.row.id, line.source, column))
        return own is not None and len(values) > 1 and own == max(values)


def _group(column: _Column) -> str:
    return column.group


def _source(run: ReproducedTable, row: ReproducedRow) -> str:
    protocol = "" if run.protocol is None else f", {run.protocol}"
    return f"ours{protocol}{', stand-in' if row.stand_ins else ''}"


def _ours(line: _Line, column: _Column) -> float | None:
    if line.measured is None:
        return None
    mode = column.mode or _only_mode(line.row, column.collection)
    cell = None if mode is None else _measured_cell(line.measured, column.collection, mode)
    return None if cell is None or cell.ours is None else round(cell.ours, 3)


def _only_mode(row: PublishedRow, collection: str) -> str | None:
    return next(iter(row.figures.get(collection, {})), None)


def _measured_cell(row: ReproducedRow, collection: str, mode: str) -> ReproducedCell | None:
    return next((c for c in row.cells if (c.collection, c.mode) == (collection, mode) and "@" in c.measure), None)


def _published(row: PublishedRow, collection: str, mode: str) -> float | None:
    measures = row.figures.get(collection, {}).get(mode, {})
    return next((value for measure, value in measures.items() if "@" in measure), None)


def _is_published(row: PublishedRow) -> bool:
    measures = [found for modes in row.figures.values() for found in modes.values()]
    return any(value is not None for found in measures for value in found.values())


def _shown(value: float | None) -> str:
    return NO_VALUE if value is None else points(value)
