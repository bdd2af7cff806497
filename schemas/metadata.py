"""Metadata: the further fields of passages that an index keeps, a typed, nullable column each."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Literal, TypeAlias

ColumnType: TypeAlias = Literal["bool", "int64", "float64", "string", "date", "timestamp"]
"""Of a column; times are kept in UTC, to the microsecond."""

Scalar: TypeAlias = bool | int | float | str | date | datetime
"""A value of a column. Where a passage has none, it is None."""

Columns: TypeAlias = dict[str, ColumnType]
"""Name of a metadata column → its type, in the order of the table."""

NOT_METADATA = ("id", "_id", "docid", "title", "text", "contents")
"""Fields that are, or may be, a passage's own."""

WORDS_OF_FILTERS = frozenset(["and", "or", "not", "in", "is", "null", "like", "between", "true", "false"])

_OF_THE_TABLE = frozenset(
    [
        *(*NOT_METADATA, "collection", "digest", "reps", "slot_tokens", "impact_ids", "impact_weights", "n_tokens"),
        *("codes", "row_checksum"),
        # What lies beside a passage's texts on its way to the table.
        *("input_ids", "slots", "content_ids", "variant_ids", "prefix_tokens", "vector_positions"),
        "none",
    ]
)
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,62}")


def check_column_name(name: str) -> None:
    """Raise `ValueError` for a name that no metadata column can have."""
    if _NAME.fullmatch(name) is None:
        why = "has more than letters of ASCII, digits and _, or does not begin with a letter"
    elif name.lower() in _OF_THE_TABLE:
        why = "is one that the index has for itself"
    elif name.lower() in WORDS_OF_FILTERS:
        why = "is a word that filters are written with"
    else:
        return
    raise ValueError(
        f"the field '{name}' cannot be metadata: its name {why}. Rename it in the documents, or name the fields to "
        "keep: --metadata year,lang (in Python metadata=[…]); --metadata none keeps none"
    )
