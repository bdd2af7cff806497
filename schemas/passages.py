"""The passage as it travels from a collection to the index, and the Arrow schemas of tables."""

from __future__ import annotations

import pyarrow as pa

from schemas.codec import StoredCodec

TEXT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("collection", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
    ]
)
"""A passage's own fields. `digest` is BLAKE2b-128 of title and text: equal digests mean an unchanged passage."""


def representation_fields(hidden_size: int) -> list[pa.Field]:
    """Columns that an encoder adds: ragged unit vectors (fp16), slot words, impacts sorted by token id."""
    vector = pa.list_(pa.field("item", pa.float16(), nullable=False), hidden_size)
    return [
        pa.field("reps", pa.list_(pa.field("item", vector, nullable=False)), nullable=False),
        pa.field("slot_tokens", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("impact_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("impact_weights", pa.list_(pa.field("item", pa.float32(), nullable=False)), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
    ]


def codes_field(width: int) -> pa.Field:
    """Column of codes: a row of `width` bytes for each vector of the passage."""
    row = pa.list_(pa.field("item", pa.uint8(), nullable=False), width)
    return pa.field("codes", pa.list_(pa.field("item", row, nullable=False)), nullable=False)


def passage_schema(hidden_size: int | None, codec: StoredCodec | None = None) -> pa.Schema:
    """Schema of an index's table; `hidden_size` None is a table without representations (BM25).

    With a codec the column `codes` comes last, and `reps` is there only if the vectors were kept.
    """
    if hidden_size is None:
        return TEXT_SCHEMA
    fields = [*TEXT_SCHEMA, *representation_fields(hidden_size)]
    if codec is None:
        return pa.schema(fields)
    kept = fields if codec.keeps_vectors else [field for field in fields if field.name != "reps"]
    return pa.schema([*kept, codes_field(codec.width)])
