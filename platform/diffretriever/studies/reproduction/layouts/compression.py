"""The paper's table of compressed indexes: a row for each collection and system, before → after in its cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pandas as pd

from diffretriever.evaluation.formats.pages import NO_VALUE, Table, TableCell
from diffretriever.evaluation.formats.tables import points
from diffretriever.schemas.base import Model
from diffretriever.studies.reproduction.config import PublishedRow, PublishedTable
from diffretriever.studies.reproduction.layouts.marks import Marking, Place, marks_of_ours
from diffretriever.studies.reproduction.report import ReproducedRow, ReproducedTable
from diffretriever.studies.reproduction.sizes import IndexSize, index_size

_ARROW = "\N{RIGHTWARDS ARROW}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_ABOUT = "\N{ALMOST EQUAL TO}"
_HEADS = ("Dataset", "Backbone", "Variant")
_DENSE, _COMPRESSED = "dense", "compressed"

_SIZES = (
    "Effectiveness and sizes before and after compression. Sizes of ours with a wavy sign are arithmetic, without "
    "titles, ids and centroids: vectors in bf16 as zstd at level 3 leaves them, which is how the paper's sizes come "
    "about, and two bits a dimension with a 4-byte number of a centroid. The last column, always "
    "arithmetic, is the ratio to plain bf16."
)
_MISSING = (
    "Missing here: the third step of the paper, in which centroids restrict the passages that MaxSim scores. "
    "Compressed scores of ours rank all passages."
)


class CompressionLayout(Model):
    """How the table is printed. Beside the paper's sizes stand those that follow from the number of vectors."""

    kind: Literal["compression"] = "compression"
    collections: dict[str, str]
    """Collection → what the paper calls it."""
    marking: Marking = Marking()

    def tables(self, table: PublishedTable, measured: Sequence[ReproducedTable]) -> Iterator[Table]:
        """Yield the table, once for each protocol if something was run; `measured` is what was."""
        run = [each for each in measured if any(cell.ours is not None for row in each.rows for cell in row.cells)]
        for each in run or measured[:1]:
            yield self._table(table, each)

    def _table(self, table: PublishedTable, measured: ReproducedTable) -> Table:
        rows = {row.id: row for row in measured.rows}
        marks = marks_of_ours(self.marking, measured)
        body = [
            [title, row.backbone, row.variant, *self._cells(row, collection, rows.get(row.id), marks)]
            for collection, title in self.collections.items()
            for row in table.rows
        ]
        sides = ("paper", "ours")
        groups = (("Eff.", sides), ("Storage", sides), ("Ratio", (*sides, "to bf16")))
        heads = [*(("", head) for head in _HEADS), *((group, side) for group, under in groups for side in under)]
        protocol = "" if measured.protocol is None else f", protocol {measured.protocol}"
        return Table(
            title=f"{table.place}{protocol}",
            caption=measured.caption,
            frame=pd.DataFrame(body, columns=pd.MultiIndex.from_tuples(heads)),
            n_labels=len(_HEADS),
            notes=(*self.marking.notes(), _SIZES, _MISSING),
            rules=frozenset(range(len(table.rows), len(body), len(table.rows))),
        )

    def _cells(
        self,
        row: PublishedRow,
        collection: str,
        measured: ReproducedRow | None,
        marks: Mapping[Place, str],
    ) -> Iterator[TableCell]:
        size, about = _sizes(row, collection, measured)
        published = row.figures[collection]
        before, after = published[_DENSE], published[_COMPRESSED]
        sign = self.marking.printed.get(row.id, {}).get(collection, {}).get(_COMPRESSED, "")
        yield TableCell(f"{_effect(before)}{_ARROW}{_effect(after)}", sign)
        yield _effect_of_ours(measured, collection, marks.get((row.id, collection, _COMPRESSED), ""))
        yield TableCell(f"{_printed(before)}{_ARROW}{_printed(after)}")
        yield TableCell(f"{about}{size_text(size.zstd)}{_ARROW}{size_text(size.compressed)}")
        yield TableCell(f"{after['ratio']:.1f}{_TIMES}")
        yield TableCell(f"{about}{size.zstd / size.compressed:.1f}{_TIMES}")
        computed = index_size(row, collection)
        yield TableCell(f"{computed.raw / computed.compressed:.1f}{_TIMES}")


def _sizes(row: PublishedRow, collection: str, measured: ReproducedRow | None) -> tuple[IndexSize, str]:
    computed = index_size(row, collection)
    cells = [] if measured is None else [cell for cell in measured.cells if cell.collection == collection]
    units = {"GiB": 1 << 30, "MiB": 1 << 20}
    found = {c.mode: c.ours * units[c.measure] for c in cells if c.measure in units and c.ours is not None}
    if not {_DENSE, _COMPRESSED} <= found.keys():
        return computed, _ABOUT
    return IndexSize(computed.raw, found[_DENSE], round(found[_COMPRESSED])), ""


def _effect(measures: Mapping[str, float | None]) -> str:
    value = next((value for measure, value in measures.items() if "@" in measure), None)
    return NO_VALUE if value is None else points(value)


def _effect_of_ours(measured: ReproducedRow | None, collection: str, signs: str) -> TableCell:
    cells = [] if measured is None else [c for c in measured.cells if c.collection == collection and "@" in c.measure]
    values = {cell.mode: cell for cell in cells if cell.ours is not None}
    if not values:
        return TableCell("")
    shown = (points(values[mode].ours or 0.0) if mode in values else NO_VALUE for mode in (_DENSE, _COMPRESSED))
    differences = [cell.difference for cell in values.values() if cell.difference is not None]
    return TableCell(_ARROW.join(shown), signs, difference=max(differences, key=abs, default=None))


def _printed(measures: Mapping[str, float | None]) -> str:
    for unit in ("GiB", "MiB"):
        value = measures.get(unit)
        if value is not None:
            return f"{value:g}{unit[0]}" if value >= 10 else f"{value:.1f}{unit[0]}"
    return NO_VALUE


def size_text(n_bytes: float) -> str:
    """Write bytes as the paper does, with two digits or three: 47G, 7.4G, 131M; smaller ones as 12K."""
    units = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
    size, unit = next((each for each in units if n_bytes >= each[0]), units[-1])
    value = n_bytes / size
    return f"{value:.0f}{unit}" if value >= 10 else f"{value:.1f}{unit}"
