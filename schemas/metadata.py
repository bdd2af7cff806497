"""Metadata of passages, which an index stores in typed, nullable columns."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Literal, TypeAlias

ColumnType: TypeAlias = Literal["bool", "int64", "float64", "string", "date", "timestamp"]
"""Type of a column; times are in UTC with microseconds."""

Scalar: TypeAlias = bool | int | float | str | date | datetime
"""Value of a column; None for a passage without one."""

Columns: TypeAlias = dict[str, ColumnType]
"""Name of a metadata column → its type, in table order."""

PASSAGE_FIELDS = ("id", "_id", "docid", "title", "text", "contents")
"""Names of a passage's text fields."""

_FILTER_KEYWORDS = frozenset(["and", "or", "not", "in", "is", "null", "like", "between", "true", "false"])

_RESERVED = frozenset(
    [
        *(*PASSAGE_FIELDS, "collection", "digest", "reps", "slot_tokens", "impact_ids", "impact_weights", "n_tokens"),
        *("codes", "row_checksum"),
        # Columns that accompany the texts on the way to the table.
        *("input_ids", "slots", "content_ids", "variant_ids", "prefix_tokens", "vector_positions"),
        "none",
    ]
)
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,62}")


def check_column_name(name: str) -> None:
    """Raise `ValueError` for an invalid name of a metadata column."""
    if _NAME.fullmatch(name) is None:
        reason = "must begin with an ASCII letter and contain only ASCII letters, digits and _"
    elif name.lower() in _RESERVED:
        reason = "is reserved for the index"
    elif name.lower() in _FILTER_KEYWORDS:
        reason = "is a keyword of filters"
    else:
        return
    raise ValueError(
        f"the field '{name}' cannot be metadata, because its name {reason}: rename it in the documents, or list the "
        "fields to store: --metadata year,lang (in Python metadata=[…]); --metadata none stores no metadata"
    )
