"""Checksums of what Lance keeps none for: the rows of a table, and the files that say which rows are deleted.

A row's checksum is written with it, and a changed bit in a data file is found by it. It covers all columns but title
and text, which the column `digest` covers; a compressed row's is of what is stored.

A changed bit in a file of deleted rows hides a passage and brings another back, and nothing else would tell. A commit
that deletes rows leaves a file of checksums beside the table, before it where the files of deleted rows are there by
then.

Legend: P rows, C columns.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.files import file_state, files_in, is_local, json_digest, read_bytes, read_model, remove, write_text
from diffretriever.ragged import offsets_of
from diffretriever.schemas.index import ROW_CHECKSUM, DeletionChecksums

T = TypeVar("T", pa.Table, pa.RecordBatch)

_LEFT_OUT = ("title", "text", ROW_CHECKSUM)
_FOLDER = "deletions"
_SEEN: set[tuple[str, str, str]] = set()
"""Files of deleted rows that this process has found to be as they were written: place, digest, state."""
_FIX = "make sure by `inspect_index.py --verify` that nothing else is damaged, then remove it"


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
    if column.null_count:
        counts_P, column = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), column.drop_null()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_list(column.type):
        counts_P = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        column = column.flatten()
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        column = column.flatten()
    values_N = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    return values_N.view(np.uint8).data, offsets_of(counts_P * width * values_N.itemsize)


def deletion_files(fragments: Iterable[Any]) -> set[str]:
    """Return the paths, within the table, of the files that say what is deleted of fragments, by their metadata."""
    return {part.deletion_file.path(part.id) for part in fragments if part.deletion_file is not None}


def note_deletions(uri: str, table: str, files: Iterable[str]) -> None:
    """Keep the checksums of files that a commit makes or has made.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        files: their paths within the table.
    """
    sums = {name: _digest(f"{table}/{name}") for name in sorted(files)}
    if sums:
        _write(uri, sums)


def refuse_wrong_deletions(uri: str, table: str, fragments: Callable[[], Iterable[Any]]) -> None:
    """Look at the files of deleted rows of an index on this machine before Lance reads them.

    They are small, and a damaged one does more harm than any other file: rows vanish or come back, or Lance asks for so
    much memory that the process dies.

    Args:
        uri: of the index.
        table: path of its Lance table.
        fragments: gives the metadata of those to look at.

    Raises:
        ValueError: one is not as it was written; the message names it.
    """
    if not is_local(uri) or not files_in(f"{table}/_deletions"):
        return
    # What is wrong with a record is for `--verify` to say.
    sums = _noted(uri).sums
    known = [f"{table}/{name}" for name in sorted(deletion_files(fragments()) & sums.keys())]
    wrong = [place for place in known if not _is_as_written(place, sums[place.removeprefix(f"{table}/")])]
    if wrong:
        raise ValueError(
            f"the table of {uri} is damaged: {', '.join(wrong)} is not what was written, so that deleted passages "
            "would be back, or others missing: restore it from a copy, or make the index again"
        )


def _is_as_written(place: str, digest: str) -> bool:
    try:
        state = place, digest, file_state(place)
        if state not in _SEEN:
            if _digest(place) != digest:
                return False
            _SEEN.add(state)
    except FileNotFoundError:
        return False
    return True


def wrong_deletions(uri: str, table: str, fragments: Iterable[Any]) -> tuple[list[str], int]:
    """Return which files of deleted rows are not as they were written, and how many have no checksum.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        fragments: metadata of those to look at.
    """
    sums, _, wrong = _noted(uri)
    files = sorted(deletion_files(fragments))
    known = [name for name in files if name in sums]
    wrong += [f"{name} is not what was written" for name in known if _digest(f"{table}/{name}") != sums[name]]
    return wrong, len(files) - len(known)


def forget_deletions(uri: str, table: str) -> None:
    """Join the files of checksums; leave out those of files that are gone. A damaged one stays as it is."""
    sums, read, _ = _noted(uri)
    there = {f"_deletions/{file.base_name}" for file in files_in(f"{table}/_deletions")}
    kept = {name: sums[name] for name in sorted(sums.keys() & there)}
    if len(read) < 2 and kept == sums:
        return
    joined = _write(uri, kept) if kept else None
    for record in read:
        if record != joined:
            remove(record)


class _Noted(NamedTuple):
    """What the files of checksums of an index say."""

    sums: dict[str, str]
    read: list[str]
    """Files that can be used."""
    wrong: list[str]
    """What is wrong with the others."""


def _noted(uri: str) -> _Noted:
    noted = _Noted({}, [], [])
    for record in _records(uri):
        try:
            noted.sums.update(_read(record))
            noted.read.append(record)
        except ValueError as error:
            noted.wrong.append(str(error))
    return noted


def _records(uri: str) -> list[str]:
    folder = f"{uri.rstrip('/')}/{_FOLDER}"
    return [f"{folder}/{file.base_name}" for file in files_in(folder) if file.extension == "json"]


def _read(record: str) -> dict[str, str]:
    try:
        files = read_model(record, DeletionChecksums, _FIX).files
    except FileNotFoundError:
        # Another process has joined it with others since.
        return {}
    if f"{json_digest(files)}.json" != PurePosixPath(record).name:
        raise ValueError(f"{record} cannot be used: it is not what was written: {_FIX}")
    return files


def _write(uri: str, sums: dict[str, str]) -> str:
    place = f"{uri.rstrip('/')}/{_FOLDER}/{json_digest(sums)}.json"
    write_text(place, DeletionChecksums(files=sums).model_dump_json())
    return place


def _digest(place: str) -> str:
    return hashlib.sha256(read_bytes(place)).hexdigest()
