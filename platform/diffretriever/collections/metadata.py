"""Infers the metadata columns of an index from records' additional fields, and converts values to their types.

Types are known after reading all records. If values need conversion, records are read a second time; a value that
cannot be converted makes its record bad.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import ne
from typing import Any, Literal, NamedTuple, TypeAlias

from diffretriever.collections.base import Collection, TransformedCollection
from diffretriever.collections.records import BadRecord, Part, Passage, Reading, RefusedError, Untyped, bad_record
from diffretriever.schemas.base import suggest
from diffretriever.schemas.metadata import Columns, ColumnType, Scalar, check_column_name

Kind: TypeAlias = ColumnType | Literal["written bool", "written int64", "written float64", "written string", "other"]
"""Type of a value as read; `written` types are inferred from untyped files such as CSV."""

Kinds: TypeAlias = dict[str, dict[Kind, None]]
"""Field name → kinds of its values, in order of occurrence."""

_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 63) - 1
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
"""Without leading zeros: 007 is a text."""
_BOOLS = {"true": True, "false": False, "True": True, "False": False}
_FIX = "write one type, or name the fields to keep without this one (--metadata, in Python metadata=[…])"


class InferredColumns(NamedTuple):
    """Metadata columns inferred from all records."""

    columns: Columns
    unchanged: bool
    """Whether all values already have the types of their columns."""
    left_out: list[str]
    """Fields with lists or objects, which are not stored."""


@dataclass(frozen=True)
class WithMetadata(TransformedCollection):
    """A collection whose passages have the metadata that an index stores."""

    source: Collection
    requested: tuple[str, ...] | None = None
    """Fields to store; None stores all."""
    columns: Columns | None = None
    """Columns of the index; None if not yet inferred, and values stay as read."""

    def read(self, part: Part) -> Reading:
        """Read a part."""
        reading = self.source.read(part)
        if self.requested == ():
            return reading
        blocks = ([(line, self._kept(reading.file, line, item)) for line, item in block] for block in reading.blocks)
        return replace(reading, blocks=blocks)

    def _kept(self, file: str, line: int, record: Passage | BadRecord) -> Passage | BadRecord:
        if isinstance(record, BadRecord) or not record.extra:
            return record
        try:
            values = ((name, self._value(name, value)) for name, value in record.extra.items() if self._keeps(name))
            return replace(record, metadata={name: value for name, value in values if value is not None})
        except RefusedError as refused:
            raw = json.dumps({"id": record.id, **record.extra}, ensure_ascii=False, default=str)
            # In a folder of texts, the id identifies the file.
            return bad_record(file, line, f"{refused}, in the record '{record.id}'", raw)

    def _keeps(self, name: str) -> bool:
        return self.requested is None or name in self.requested

    def _value(self, name: str, value: Any) -> Scalar | None:
        if self.columns is None:
            return as_read(name, value)[1]
        if name in self.columns:
            return in_column(name, value, self.columns[name])
        if as_read(name, value)[1] is None or self.requested is not None:
            return None
        raise RefusedError(
            f"unknown field: the index has no column '{name}': make it anew to have one, or name the fields to keep "
            f"(--metadata, in Python metadata=[…]).{suggest(name, self.columns) if self.columns else ''}"
        )

    def add_kinds(self, kinds: Kinds, passages: Iterable[Passage]) -> None:
        """Add the kinds of all values if columns are still unknown; fields that are not stored count as `other`."""
        if self.columns is not None or self.requested == ():
            return
        for passage in passages:
            for name, value in passage.extra.items():
                kind = as_read(name, value)[0] if self._keeps(name) else "other"
                if kind is not None:
                    kinds.setdefault(name, {})[kind] = None

    def infer_columns(self, kinds: Iterable[Kinds]) -> InferredColumns:
        """Infer the columns from the kinds of all parts, in order.

        Raises:
            ValueError: a requested field is missing in all records, or its name is not a valid column name.
        """
        joined: Kinds = {}
        for part in kinds:
            for name, kinds_of_field in part.items():
                joined.setdefault(name, {}).update(kinds_of_field)
        for name in self.requested or ():
            if name not in joined:
                have = suggest(name, joined) if joined else " No record has any."
                raise ValueError(f"--metadata: no record of '{self.name}' has a field '{name}'.{have}")
        columns, left_out, unchanged = Columns(), list[str](), True
        for name, kinds_of_field in joined.items():
            if not self._keeps(name):
                continue
            if "other" in kinds_of_field:
                left_out.append(name)
            if scalars := [kind for kind in kinds_of_field if kind != "other"]:
                check_column_name(name)
                columns[name] = _column_type(scalars)
                unchanged &= scalars in ([columns[name]], ["written string"])
        return InferredColumns(columns, unchanged, left_out)


def _column_type(kinds: Sequence[Kind]) -> ColumnType:
    """Return the type of the first value; float64 for integers mixed with floats, string for mixed untyped values."""
    plain: list[Any] = [kind.removeprefix("written ") for kind in kinds]
    if {"int64", "float64"}.issubset(plain):
        plain = ["float64" if kind == "int64" else kind for kind in plain]
    written = any(kind.startswith("written") for kind in kinds)
    first: ColumnType = "string" if written and len(set(plain)) > 1 else plain[0]
    return first


def as_read(name: str, value: Any) -> tuple[Kind | None, Scalar | None]:
    """Return the kind of a value and the value to store; None and None for a missing value.

    Raises:
        RefusedError: the value cannot be stored.
    """
    if getattr(value, "shape", None) == ():
        # NumPy scalar.
        value = value.item()
    kind: Kind = next((_KINDS[base] for base in type(value).__mro__ if base in _KINDS), "other")
    # NaN and NaT differ from themselves.
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
    # Converts subclasses such as pandas.Timestamp.
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
    """Convert a value to the type of its column; missing values, lists and objects become None.

    Raises:
        RefusedError: the value has another type.
    """
    value_kind, read = as_read(name, value)
    if value_kind is None or value_kind in ("other", kind):
        return read
    if isinstance(value, Untyped):
        read = _parsed(str(value), kind)
    elif isinstance(read, int) and kind == "float64" and value_kind == "int64":
        read = float(read)
    else:
        # JSON has no dates.
        read = _parsed(read, kind) if isinstance(read, str) and kind in ("date", "timestamp") else None
    if read is None:
        shown = value_kind.removeprefix("written ")
        raise RefusedError(f"wrong type: '{name}' is {shown}, and {kind} in other records or in the index: {_FIX}")
    return read


def _parsed(text: str, kind: ColumnType) -> Scalar | None:
    try:
        return _PARSERS[kind](text)
    except ValueError:
        return None


def time_of(text: str) -> datetime:
    """Parse an ISO 8601 time to UTC, which is also the default zone; raises ValueError."""
    return _time("", datetime.fromisoformat(text))


_PARSERS: Mapping[ColumnType, Callable[[str], Scalar | None]] = {
    "bool": _BOOLS.get,
    "int64": lambda text: int(text) if _INTEGER.fullmatch(text) else None,
    "float64": lambda text: float(text) if _NUMBER.fullmatch(text) else None,
    "string": str,
    "date": date.fromisoformat,
    "timestamp": time_of,
}
