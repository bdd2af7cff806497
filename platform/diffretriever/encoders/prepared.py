"""Texts made ready for a forward pass: token ids with slots and tail in place, and content ids. CPU work, Arrow form.

Legend: N texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

PREPARED_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("slots", pa.int32()),
        ("content_ids", pa.list_(pa.int32())),
        ("variant_ids", pa.list_(pa.int32())),
        ("n_tokens", pa.int32()),
        ("prefix_tokens", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class PreparedText:
    """One text.

    Attributes:
        input_ids: int32 [L], everything the model sees.
        slots: K, the most vectors of a generated text, 0 for pooled encoders.
        content_ids: int32 [T], ascending; see `ContentWords`.
        variant_ids: int32 [T].
        n_tokens: tokens of the text; of a pooled text the special tokens count, of others the prompt does not.
        prefix_tokens: tokens at the start that every text of this side shares, where the method can use that.

    Of a late-interaction text `content_ids` are the positions whose states become vectors, `slots` is how many these
    are, and `n_tokens` the tokens attended to.
    """

    input_ids: np.ndarray
    slots: int
    content_ids: np.ndarray
    variant_ids: np.ndarray
    n_tokens: int
    prefix_tokens: int = 0


def to_arrow(texts: Sequence[PreparedText]) -> pa.Table:
    """Return `PREPARED_SCHEMA`, one row a text."""
    return pa.table(
        {
            "input_ids": [t.input_ids for t in texts],
            "slots": [t.slots for t in texts],
            "content_ids": [t.content_ids for t in texts],
            "variant_ids": [t.variant_ids for t in texts],
            "n_tokens": [t.n_tokens for t in texts],
            "prefix_tokens": [t.prefix_tokens for t in texts],
        },
        schema=PREPARED_SCHEMA,
    )


def from_arrow(table: pa.Table) -> list[PreparedText]:
    """Read back what `to_arrow` made; other columns are ignored."""
    columns = {name: _values(table.column(name).combine_chunks()) for name in PREPARED_SCHEMA.names}
    return [PreparedText(**dict(zip(columns, fields, strict=True))) for fields in zip(*columns.values(), strict=True)]


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_list(column.type):
        return [value.values.to_numpy(zero_copy_only=False) for value in column]
    return column.to_pylist()
