"""A checksum of each row of a table, written with the row: what a changed bit in a data file is found by.

It covers all columns but title and text, which the column `digest` covers. A compressed row's is of what is stored.

Legend: P rows, C columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.ragged import offsets_of
from schemas.index import ROW_CHECKSUM

T = TypeVar("T", pa.Table, pa.RecordBatch)

_LEFT_OUT = ("title", "text", ROW_CHECKSUM)


def as_stored(rows: T, schema: pa.Schema) -> T:
    """Return rows with the columns of a table's schema, their checksums made where the table has such a column."""
    if ROW_CHECKSUM not in schema.names:
        stored: T = rows.select(schema.names).cast(schema)
        return stored
    others = pa.schema([field for field in schema if field.name != ROW_CHECKSUM])
    cast = rows.select(others.names).cast(others)
    sums = pa.array(row_checksums(cast, others.names))
    columns = [sums if field.name == ROW_CHECKSUM else cast.column(field.name) for field in schema]
    made: T = type(rows).from_arrays(columns, schema=schema)
    return made


def row_checksums(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> np.ndarray:
    """Return uint32 [P]: CRC-32 of each row's values, and how many bytes each has, in the columns `names`."""
    columns = [_bytes_of(rows.column(name)) for name in sorted(set(names) - set(_LEFT_OUT))]
    lengths_PC = np.ascontiguousarray(np.stack([np.diff(offsets) for _, offsets in columns], axis=1))
    sums = [zlib.crc32(row) for row in lengths_PC.view(np.uint8)]
    for data, offsets in columns:
        spans = pairwise(offsets.tolist())
        sums = [zlib.crc32(data[start:stop], value) for value, (start, stop) in zip(sums, spans, strict=True)]
    return np.array(sums, np.uint32)


def _bytes_of(column: pa.Array | pa.ChunkedArray) -> tuple[memoryview, np.ndarray]:
    """Return the bytes of a column's values, and where those of each row begin, int64 [P + 1]."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(column.type) or pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.large_binary())
        _, starts, data = column.buffers()
        offsets = np.frombuffer(starts, np.int64)[column.offset : column.offset + len(column) + 1]
        return memoryview(data if data is not None else b""), offsets
    counts_P, width = np.ones(len(column), np.int64), 1
    if pa.types.is_list(column.type):
        counts_P = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        column = column.flatten()
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        column = column.flatten()
    values_N = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    return values_N.view(np.uint8).data, offsets_of(counts_P * width * values_N.itemsize)
