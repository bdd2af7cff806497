"""Pieces of training sources as they are read, and the checking of their records: one is cheap, the other is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from diffretriever.collections.base import BadRecord
from diffretriever.collections.lines import Line, TextFile, read_lines
from diffretriever.collections.validation import RefusedError, decode
from diffretriever.training.example_records import Checked, example_from_fields, example_from_json, example_from_tsv

RawKind: TypeAlias = Literal["jsonl", "tsv", "rows", "bad"]

MAX_RECORD_BYTES = 16_000_000
"""A longer line is refused unparsed."""
_PIECE_BYTES = 4_000_000
_PIECE_RECORDS = 1024
_RAW_CHARACTERS = 200

_LINES = pa.schema([("number", pa.int64()), ("data", pa.large_binary()), ("complete", pa.bool_())])


class RawPiece(NamedTuple):
    """Some records of one file.

    `jsonl` and `tsv`: number, data and complete of each line. `rows`: number and the fields of each record. `bad`: the
    fields of `BadRecord`.
    """

    file: str
    kind: RawKind
    records: pa.Table


def lines_of(file: TextFile, kind: RawKind) -> Iterator[RawPiece]:
    """Stream a text file in pieces of some megabytes."""
    waiting: list[Line] = []
    size = 0
    for line in read_lines(file, MAX_RECORD_BYTES):
        waiting.append(line)
        size += len(line.data)
        if size >= _PIECE_BYTES or len(waiting) == _PIECE_RECORDS:
            yield _piece(file, kind, waiting)
            waiting, size = [], 0
    if waiting:
        yield _piece(file, kind, waiting)


def _piece(file: TextFile, kind: RawKind, lines: list[Line]) -> RawPiece:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*lines, strict=True), _LINES, strict=True)]
    return RawPiece(file.shown, kind, pa.Table.from_arrays(columns, schema=_LINES))


def rows_of(file: TextFile) -> Iterator[RawPiece]:
    """Stream a parquet file's rows.

    Raises:
        ValueError: it is no parquet file, or a damaged one.
    """
    first = 1
    try:
        with pq.ParquetFile(file.path) as source:
            for batch in source.iter_batches(batch_size=_PIECE_RECORDS):
                yield rows_piece(file.shown, range(first, first + len(batch)), batch.to_struct_array())
                first += len(batch)
    except pa.ArrowException as error:
        raise ValueError(f"{file.shown}: cannot be read as parquet after row {first - 1}: {error}") from error


def rows_piece(file: str, numbers: Iterable[int], fields: pa.Array) -> RawPiece:
    """Return a piece of records that are given as structs, with their numbers."""
    return RawPiece(file, "rows", pa.table({"number": pa.array(numbers, pa.int64()), "fields": fields}))


def bad_piece(bad: list[BadRecord]) -> RawPiece:
    """Return a piece of records that reading itself has found unusable."""
    fields = [{"file": b.file, "line": b.line, "reason": b.reason, "raw": b.raw} for b in bad]
    return RawPiece("", "bad", pa.Table.from_pylist(fields))


def checked(piece: RawPiece) -> Iterator[Checked | BadRecord]:
    """Yield every record of a piece, as an example or with the reason why it cannot be one."""
    if piece.kind == "bad":
        yield from (BadRecord(**row) for row in piece.records.to_pylist())
        return
    for row in piece.records.to_pylist():
        yield _judge(piece.file, row, _PARSERS[piece.kind])


def _judge(file: str, row: dict[str, Any], parse: Callable[[dict[str, Any]], Checked]) -> Checked | BadRecord:
    try:
        return parse(row)
    except RefusedError as refused:
        raw = row["data"][: 4 * _RAW_CHARACTERS].decode(errors="replace") if "data" in row else repr(row["fields"])
        return BadRecord(file, row["number"], str(refused), raw[:_RAW_CHARACTERS])


def _from_line(parse: Callable[[str], Checked], row: dict[str, Any]) -> Checked:
    if not row["complete"]:
        raise RefusedError(f"too long: more than {MAX_RECORD_BYTES} bytes")
    return parse(decode(Line(row["number"], row["data"], complete=True)))


def _from_row(row: dict[str, Any]) -> Checked:
    return example_from_fields(row["fields"])


_PARSERS: dict[RawKind, Callable[[dict[str, Any]], Checked]] = {
    "jsonl": partial(_from_line, example_from_json),
    "tsv": partial(_from_line, example_from_tsv),
    "rows": _from_row,
}
