"""Metadata of passages: which further fields of a collection's records an index keeps, and in which types.

A type is known when all records have been read. Where values had the types of their columns from the start, that one
reading is enough; otherwise the records are read again with the types known, and a value that has no place in its
column makes the record a bad one, as any other mistake in it does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import ne
from typing import Any, Literal, NamedTuple, TypeAlias

from diffretriever.collections.base import Collection, CollectionOver
from diffretriever.collections.records import BadRecord, Part, Passage, Reading, RefusedError, Untyped, bad_record
from diffretriever.schemas.base import suggest
from diffretriever.schemas.metadata import Columns, ColumnType, Scalar, check_column_name

Kind: TypeAlias = ColumnType | Literal["written bool", "written int64", "written float64", "written string", "other"]
"""What a value is as it was read; `written` ones are of a file that says nothing of types."""

Kinds: TypeAlias = dict[str, dict[Kind, None]]
"""Name of a field → the kinds of its values, the first one first."""

_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 63) - 1
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
"""Without leading zeros: 007 is a text."""
_BOOLS = {"true": True, "false": False, "True": True, "False": False}
_FIX = "write one type, or name the fields to keep without this one (--metadata, in Python metadata=[…])"


class Known(NamedTuple):
    """What all records say of the further fields."""

    columns: Columns
    as_read: bool
    """Whether every value was read in the type of its column."""
    left_out: list[str]
    """Fields with values that no column can have."""


@dataclass(frozen=True)
class WithMetadata(CollectionOver):
    """A collection whose passages have the metadata that an index keeps."""

    source: Collection
    wanted: tuple[str, ...] | None = None
    """Names of the fields to keep; None: all."""
    columns: Columns | None = None
    """Of the index; None where they are not known yet, and values stay as they are read."""

    def records(self) -> Iterator[Passage | BadRecord]:
        """Stream the records."""
        return (record for part in self.parts() for block in self.read(part).blocks for _, record in block)

    def read(self, part: Part) -> Reading:
        """Read a part."""
        reading = self.source.read(part)
        if self.wanted == ():
            return reading
        blocks = ([(line, self._kept(reading.file, line, each)) for line, each in block] for block in reading.blocks)
        return replace(reading, blocks=blocks)

    def _kept(self, file: str, line: int, record: Passage | BadRecord) -> Passage | BadRecord:
        if isinstance(record, BadRecord) or not record.further:
            return record
        try:
            values = ((name, self._value(name, value)) for name, value in record.further.items() if self._keeps(name))
            return replace(record, metadata={name: value for name, value in values if value is not None})
        except RefusedError as refused:
            raw = json.dumps({"id": record.id, **record.further}, ensure_ascii=False, default=str)
            # In a folder of texts the id is what names the file.
            return bad_record(file, line, f"{refused}, in the record '{record.id}'", raw)

    def _keeps(self, name: str) -> bool:
        return self.wanted is None or name in self.wanted

    def _value(self, name: str, value: Any) -> Scalar | None:
        if self.columns is None:
            return as_read(name, value)[1]
        if name in self.columns:
            return in_column(name, value, self.columns[name])
        if as_read(name, value)[1] is None or self.wanted is not None:
            return None
        raise RefusedError(
            f"unknown field: the index has no column '{name}': make it anew to have one, or name the fields to keep "
            f"(--metadata, in Python metadata=[…]).{suggest(name, self.columns) if self.columns else ''}"
        )

    def add_kinds(self, kinds: Kinds, passages: Iterable[Passage]) -> None:
        """Add the kinds of all values, while the columns are not known; of fields that are not kept, `other`."""
        if self.columns is not None or self.wanted == ():
            return
        for passage in passages:
            for name, value in passage.further.items():
                kind = as_read(name, value)[0] if self._keeps(name) else "other"
                if kind is not None:
                    kinds.setdefault(name, {})[kind] = None

    def known(self, kinds: Iterable[Kinds]) -> Known:
        """Return the columns, of the kinds of all parts, in order.

        Raises:
            ValueError: a field is wanted that no record has, or its name is none for a column.
        """
        joined: Kinds = {}
        for part in kinds:
            for name, own in part.items():
                joined.setdefault(name, {}).update(own)
        for name in self.wanted or ():
            if name not in joined:
                have = suggest(name, joined) if joined else " No record has any."
                raise ValueError(f"--metadata: no record of '{self.name}' has a field '{name}'.{have}")
        found = Known({}, as_read=True, left_out=[])
        for name, own in joined.items():
            if not self._keeps(name):
                continue
            if "other" in own:
                found.left_out.append(name)
            if scalars := [kind for kind in own if kind != "other"]:
                check_column_name(name)
                found.columns[name] = _column_type(scalars)
                if scalars not in ([found.columns[name]], ["written string"]):
                    found = found._replace(as_read=False)
        return found


def _column_type(kinds: Sequence[Kind]) -> ColumnType:
    """Return the type that the first value asks for; where integers are beside floats, that is float64."""
    plain: list[Any] = [kind.removeprefix("written ") for kind in kinds]
    if {"int64", "float64"}.issubset(plain):
        plain = ["float64" if kind == "int64" else kind for kind in plain]
    written = any(kind.startswith("written") for kind in kinds)
    first: ColumnType = "string" if written and len(set(plain)) > 1 else plain[0]
    return first


def as_read(name: str, value: Any) -> tuple[Kind | None, Scalar | None]:
    """Return the kind of a value, and the value as a column has it; of nothing, None and None.

    Raises:
        RefusedError: nobody can store it.
    """
    if getattr(value, "shape", None) == ():
        # A number of NumPy's.
        value = value.item()
    kind: Kind = next((_KINDS[base] for base in type(value).__mro__ if base in _KINDS), "other")
    # NaN, and what pandas has for no time, differ from themselves.
    if value is None or (kind in ("float64", "timestamp") and ne(value, value)):
        return None, None
    if isinstance(value, Untyped):
        return _written(name, str(value))
    return kind, None if kind == "other" else _PLAIN[kind](name, value)


def _integer(name: str, value: int) -> int:
    if not _LEAST_INT <= value <= _MOST_INT:
        raise RefusedError(f"wrong value: '{name}' is an integer that 64 bits do not hold: make it a text")
    return int(value)


def _text(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedError(f"lone surrogate: in {name}") from None
    return str(value)


def _time(_: str, value: datetime) -> datetime:
    aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    # Of a subclass, such as pandas has, a plain one.
    return datetime.combine(aware.date(), aware.time(), UTC)


_KINDS: Mapping[type, Kind] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    Decimal: "float64",
    str: "string",
    datetime: "timestamp",
    date: "date",
}
_PLAIN: Mapping[Kind, Callable[[str, Any], Scalar]] = {
    "bool": lambda _, value: bool(value),
    "int64": _integer,
    "float64": lambda _, value: float(value),
    "string": _text,
    "timestamp": _time,
    "date": lambda _, value: value,
}


def _written(name: str, value: str) -> tuple[Kind | None, Scalar | None]:
    if not value:
        return None, None
    if value in _BOOLS:
        return "written bool", value
    if _INTEGER.fullmatch(value):
        return "written int64", value
    if _NUMBER.fullmatch(value) and math.isfinite(float(value)):
        return "written float64", value
    return "written string", _text(name, value)


def in_column(name: str, value: Any, kind: ColumnType) -> Scalar | None:
    """Return a value in the type of its column; None of nothing, and of lists and objects, which are not kept.

    Raises:
        RefusedError: it has another type.
    """
    found, read = as_read(name, value)
    if found is None or found in ("other", kind):
        return read
    if isinstance(value, Untyped):
        read = _parsed(str(value), kind)
    elif isinstance(read, int) and kind == "float64" and found == "int64":
        read = float(read)
    else:
        # JSON has no dates.
        read = _parsed(read, kind) if isinstance(read, str) and kind in ("date", "timestamp") else None
    if read is None:
        shown = found.removeprefix("written ")
        raise RefusedError(f"wrong type: '{name}' is {shown}, and {kind} in other records or in the index: {_FIX}")
    return read


def _parsed(text: str, kind: ColumnType) -> Scalar | None:
    """Return what a text says in a type; None where that is nothing."""
    try:
        return _PARSERS[kind](text)
    except ValueError:
        return None


def time_of(text: str) -> datetime:
    """Return a time written as ISO 8601 has it, in UTC where it names no other zone; raises `ValueError`."""
    return _time("", datetime.fromisoformat(text))


_PARSERS: Mapping[ColumnType, Callable[[str], Scalar | None]] = {
    "bool": _BOOLS.get,
    "int64": lambda text: int(text) if _INTEGER.fullmatch(text) else None,
    "float64": lambda text: float(text) if _NUMBER.fullmatch(text) else None,
    "string": str,
    "date": date.fromisoformat,
    "timestamp": time_of,
}
