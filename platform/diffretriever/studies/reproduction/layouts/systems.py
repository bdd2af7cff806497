"""The paper's usual table: a row for each system, a group of columns for each collection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

import pandas as pd
from pydantic import Field

from diffretriever.evaluation.formats.pages import NO_VALUE, Table, TableCell
from diffretriever.evaluation.formats.tables import points
from diffretriever.schemas.base import Model
from diffretriever.studies.reproduction.config import PublishedRow, PublishedTable
from diffretriever.studies.reproduction.layouts.marks import Marking, marks_of_ours
from diffretriever.studies.reproduction.report import ReproducedCell, ReproducedRow, ReproducedTable
from diffretriever.studies.reproduction.tables import load_table

RowField: TypeAlias = Literal["regime", "system", "backbone", "variant", "forward_passes"]
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
    """Title of each column of labels → its field."""
    names: dict[str, str] = Field(default_factory=dict)
    """Label → what this table calls it."""
    rules: RowField | tuple[str, ...] = ()
    """A line above each row where this label or one before it changes, or above the rows with these ids."""
    columns: tuple[ColumnGroup, ...]
    modes: tuple[str, ...] = ()
    """Columns of each collection; none: one column, with the one score that a row has."""
    parts: int = 1
    """Number of tables, one below the other, among which the groups are divided."""
    best_within: tuple[RowField, ...] | None = None
    """Bold is the best of a column among rows that agree in these; None: nothing is bold."""
    best_of_all: bool = False
    """Whether the best of a whole column is underlined."""
    marking: Marking = Marking()
    bold: Cells = Field(default_factory=dict)
    """Figures that the paper prints bold."""
    underlined: Cells = Field(default_factory=dict)

    def tables(self, table: PublishedTable, measured: Sequence[ReproducedTable]) -> Iterator[Table]:
        """Yield the parts of the table, ours below each row of the paper; `measured` has a table for each protocol."""
        lines = [line for row in table.rows for line in _lines_of(row, measured)]
        columns = _columns_of(self, table)
        is_published = any(_is_published(row) for row in table.rows)
        shows_source = is_published and any(line.measured for line in lines)
        labels = [*self.heads, *([""] if shows_source else [])]
        title = table.place if is_published else "Ours"
        cells = _Cells(self, lines, columns, measured)
        groups = [list(members) for _, members in groupby(columns, key=lambda column: column.group)]
        size = -(-len(groups) // self.parts)
        for part in range(self.parts):
            shown = [column for group in groups[part * size : (part + 1) * size] for column in group]
            heads = [("", label) for label in labels]
            rows = [
                [*self._labels(line, shows_source=shows_source), *(cells.cell(n, column) for column in shown)]
                for n, line in enumerate(lines)
            ]
            names = pd.MultiIndex.from_tuples([*heads, *((column.group, column.title) for column in shown)])
            yield Table(
                title=title if part == 0 else f"{title}, continued",
                caption=_caption(table, measured) if part == 0 else "",
                frame=pd.DataFrame(rows, columns=names),
                n_labels=len(heads),
                notes=(*self.marking.notes(), *_protocols(table, measured)) if part == 0 else (),
                rules=frozenset(n for n in range(1, len(lines)) if self._has_rule(lines[n - 1].row, lines[n].row)),
            )

    def _labels(self, line: _Line, *, shows_source: bool) -> Iterator[str]:
        for field in self.heads.values():
            value = getattr(line.row, field)
            text = NO_VALUE if value is None else self.names.get(value, value)
            yield text.capitalize() if field == "regime" else text
        if shows_source:
            yield line.source

    def _has_rule(self, above: PublishedRow, row: PublishedRow) -> bool:
        if above is row:
            return False
        if not isinstance(self.rules, str):
            return row.id in self.rules
        fields = list(self.heads.values())
        return any(getattr(above, field) != getattr(row, field) for field in fields[: fields.index(self.rules) + 1])


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
    """`paper`, or our run with its settings."""
    measured: ReproducedRow | None
    """None in the paper's lines."""
    protocol: str | None = None
    """What ours was run under."""

    def own(self, column: _Column) -> ReproducedCell | None:
        """Return the measured score in a column, if there is one."""
        mode = column.mode or _only_mode(self.row, column.collection)
        cells = () if self.measured is None else self.measured.cells
        found = (c for c in cells if (c.collection, c.mode) == (column.collection, mode) and "@" in c.measure)
        return next((cell for cell in found if cell.ours is not None), None)


class _Cells:
    """The cells of one table: the paper's emphasis, and ours by the same rules."""

    def __init__(
        self,
        layout: SystemsLayout,
        lines: Sequence[_Line],
        columns: Sequence[_Column],
        measured: Sequence[ReproducedTable],
    ) -> None:
        self._layout, self._lines = layout, lines
        self._marks = {run.protocol: marks_of_ours(layout.marking, run) for run in measured}
        self._bold = set() if layout.best_within is None else _best(lines, columns, layout.best_within)
        self._underlined = _best(lines, columns, ()) if layout.best_of_all else set()

    def cell(self, number: int, column: _Column) -> TableCell:
        """Return the cell of a line in a column."""
        line = self._lines[number]
        mode = column.mode or _only_mode(line.row, column.collection)
        if mode is None or mode not in line.row.figures.get(column.collection, {}):
            return TableCell(NO_VALUE)
        if line.measured is None:
            return self._published(line.row, column.collection, mode)
        own = line.own(column)
        if own is None or own.ours is None:
            return TableCell("")
        return TableCell(
            points(own.ours),
            self._marks[line.protocol].get((line.row.id, column.collection, mode), ""),
            bold=(number, column) in self._bold,
            underlined=(number, column) in self._underlined,
            difference=own.difference,
        )

    def _published(self, row: PublishedRow, collection: str, mode: str) -> TableCell:
        measures = row.figures[collection][mode]
        value = next((value for measure, value in measures.items() if "@" in measure), None)
        return TableCell(
            NO_VALUE if value is None else points(value),
            self._layout.marking.printed.get(row.id, {}).get(collection, {}).get(mode, ""),
            bold=mode in self._layout.bold.get(row.id, {}).get(collection, ()),
            underlined=mode in self._layout.underlined.get(row.id, {}).get(collection, ()),
        )


def _best(lines: Sequence[_Line], columns: Sequence[_Column], within: Sequence[RowField]) -> set[tuple[int, _Column]]:
    """Return the highest of ours, as printed, in each column among lines of a protocol that agree in `within`."""
    groups: dict[tuple[_Column, tuple[object, ...]], list[tuple[float, int]]] = defaultdict(list)
    for column in columns:
        for number, line in enumerate(lines):
            own = line.own(column)
            if own is not None and own.ours is not None:
                alike = (line.protocol, *(getattr(line.row, field) for field in within))
                groups[column, alike].append((round(own.ours, 3), number))
    found = set()
    for (column, _), values in groups.items():
        if len(values) > 1:
            found |= {(number, column) for value, number in values if value == max(values)[0]}
    return found


def _columns_of(layout: SystemsLayout, table: PublishedTable) -> list[_Column]:
    modes: tuple[str | None, ...] = layout.modes or (None,)
    columns = [
        _Column(group.title, title if mode is None else _MODE_TITLES[mode], collection, mode)
        for group in layout.columns
        for collection, title in group.collections.items()
        for mode in modes
    ]
    known = {(column.collection, column.mode) for column in columns}
    for row in table.rows:
        for collection, found in row.figures.items():
            for mode in found if layout.modes else [None]:
                if (collection, mode) not in known:
                    raise ValueError(f"layout of {table.id}: row {row.id}: no column for {collection} {mode}")
    return columns


def _lines_of(row: PublishedRow, measured: Sequence[ReproducedTable]) -> list[_Line]:
    ours = [
        _Line(row, _source(run, found), found, run.protocol)
        for run in measured
        for found in run.rows
        if found.id == row.id and any(cell.ours is not None for cell in found.cells)
    ]
    if ours and not _is_published(row):
        return ours
    return [_Line(row, "paper", None), *ours]


def _caption(table: PublishedTable, measured: Sequence[ReproducedTable]) -> str:
    return measured[0].caption if len(measured) == 1 else load_table(table.id).caption


def _protocols(table: PublishedTable, measured: Sequence[ReproducedTable]) -> list[str]:
    own = load_table(table.id).caption
    named = (run.caption.removeprefix(own).strip() for run in measured)
    return list(filter(None, named)) if len(measured) > 1 else []


def _source(run: ReproducedTable, row: ReproducedRow) -> str:
    protocol = "" if run.protocol is None else f", {run.protocol}"
    return f"ours{protocol}{', stand-in' if row.stand_ins else ''}"


def _only_mode(row: PublishedRow, collection: str) -> str | None:
    return next(iter(row.figures.get(collection, {})), None)


def _is_published(row: PublishedRow) -> bool:
    measures = [found for modes in row.figures.values() for found in modes.values()]
    return any(value is not None for found in measures for value in found.values())
