"""Collections in a CSV, JSON, Parquet or Arrow file, one passage per row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from diffretriever.collections.base import Collection
from diffretriever.collections.documents import flat_columns, passages_of, rows_of_batch
from diffretriever.collections.records import (
    MAX_PASSAGE_BYTES,
    BadRecord,
    Passage,
    RefusedError,
    TextFile,
    Untyped,
)
from diffretriever.core.files import open_input, understood
from diffretriever.schemas.locations import StorePath

Row = Mapping[str, Any] | RefusedError

_ROWS_AT_ONCE = 1024
_FIX = "write the table again, or give a .jsonl file of its rows"


@dataclass(frozen=True, slots=True)
class TableCollection(Collection):
    """The passages of one table file."""

    name: str
    file: TextFile
    fields: Mapping[str, str]
    """`id`, `title` or `text` → name of the column."""

    def records(self) -> Iterator[Passage | BadRecord]:
        """Stream the rows in file order."""
        with understood(self.file.shown, _FIX), open_input(self.file.path) as stream:
            yield from passages_of(READERS[PurePath(self.file.name).suffix](self, stream), self.file.shown, self.fields)

    def source_state(self) -> str:
        """Return name, size and modification time of the file."""
        return self.file.state()

    def inputs(self) -> list[Path | StorePath]:
        """Return the file."""
        return [self.file.path]

    def location(self) -> str:
        """Return the file's URI, or its absolute path with links resolved."""
        if isinstance(self.file.path, StorePath):
            return str(self.file.path)
        return str(self.file.path.resolve())


def _csv(table: TableCollection, stream: BinaryIO) -> Iterator[Row]:
    csv.field_size_limit(MAX_PASSAGE_BYTES)
    with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        rows = csv.DictReader(text, strict=True)
        try:
            for row in rows:
                # DictReader marks surplus and missing values with None.
                is_complete = None not in row and None not in row.values()
                yield (_untyped(row) if is_complete else RefusedError("wrong column count: quote values with commas"))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{table.file.shown}:{rows.line_num + 1}: not CSV in UTF-8: {error}") from error


def _untyped(row: Mapping[str, str]) -> Row:
    # pandas writes row numbers as a column without a name.
    return {name: Untyped(value) for name, value in row.items() if name}


def _json(_: TableCollection, stream: BinaryIO) -> Iterator[Row]:
    rows = json.loads(stream.read())
    if not isinstance(rows, list):
        raise ValueError("it is not a list of documents")
    yield from rows


def _parquet(_: TableCollection, stream: BinaryIO) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(stream)
    schema = file.schema_arrow
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=flat_columns(schema)):
        yield from rows_of_batch(batch, schema)


def _arrow(_: TableCollection, stream: BinaryIO) -> Iterator[Row]:
    from pyarrow import ipc

    with ipc.open_file(stream) as file:
        for number in range(file.num_record_batches):
            yield from rows_of_batch(file.get_batch(number).select(flat_columns(file.schema)), file.schema)


READERS = {".csv": _csv, ".json": _json, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
"""Suffix → reader; `.arrow` and `.feather` are Arrow's file format."""
