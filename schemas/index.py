"""What an index says of itself, and the Arrow schema of its table.

The manifest lives in the table's own schema metadata, so that it cannot differ from the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import Field

from diffretriever.schemas.base import Model, differing_fields
from diffretriever.schemas.codec import StoredCodec
from diffretriever.schemas.metadata import Columns, ColumnType
from diffretriever.schemas.retriever import RetrieverConfig

MANIFEST_FORMAT = 1


class IndexManifest(Model):
    """Which retriever made the table, fixed when the index is created, and how its vectors are stored."""

    format: int = MANIFEST_FORMAT
    """Version of the table layout."""
    retriever: RetrieverConfig
    """The resolved config, `auto` values replaced by what was used."""
    weights: str | None = None
    """Digest of the backbone's weights; None for BM25."""
    tokenizer: str | None = None
    """Digest of the backbone's tokenizer; None where the weights' digest covers it, and for BM25."""
    libraries: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries that tokenised and encoded. No part of the fingerprint."""
    hidden_size: int | None = None
    """H, the dimension of the stored vectors; None for BM25."""
    vocab_size: int | None = None
    """Size of the vocabulary that impacts point into."""
    created: str
    """ISO 8601 time, UTC."""
    codec: StoredCodec | None = None
    """What wrote the column `codes`; None where there is none. No part of the fingerprint."""
    metadata: Columns = Field(default_factory=dict)
    """Columns of further fields of passages. No part of the fingerprint."""

    @property
    def text_columns(self) -> list[str]:
        """The columns of a passage's own fields and of its metadata, as `text_table` makes them."""
        return [*TEXT_SCHEMA.names, *self.metadata]

    @property
    def decodes(self) -> bool:
        """Whether the stored vectors are codes only, to be decoded."""
        return self.codec is not None

    def stored_columns(self, wanted: Sequence[str]) -> list[str]:
        """Return the table's columns that `wanted` are made of: `codes` in place of `reps` where those are decoded."""
        if not self.decodes:
            return list(wanted)
        return list(dict.fromkeys("codes" if name == "reps" else name for name in wanted))

    @property
    def title(self) -> str:
        """A name for people: the retriever's, and the codec where vectors are decoded."""
        stored = f", {self.codec.name}" if self.codec is not None and self.decodes else ""
        return f"{self.retriever.title}{stored}"

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change whenever a vector could: config, weights, tokenizer, layout; no names or places."""
        text = json.dumps(self._identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: IndexManifest) -> list[str]:
        """Name the fields in which two retrievers differ, as `field: this != other`; empty when they agree."""
        return differing_fields(self._identity(), other._identity())

    def _identity(self) -> dict[str, Any]:
        identity = {"format": self.format, "weights": self.weights, "retriever": self.retriever.identity()}
        return identity if self.tokenizer is None else {**identity, "tokenizer": self.tokenizer}


class CollectionPlaces(Model):
    """The places that the collections of an index came from: `collections.json` in its folder."""

    places: dict[str, tuple[str, ...]]
    """Name of a collection → paths or URIs of all places from where passages were encoded under it."""


class IndexContents(Model):
    """What is in an index now, counted from the table itself."""

    rows: int
    """Passages."""
    collections: dict[str, int]
    """Passages by the collection they came from."""
    version: int
    """The table version these counts are of."""
    fragments: int
    """Groups of data files that the table consists of; compaction joins them."""
    deleted_rows: int
    """Rows marked as deleted that compaction will drop."""
    bytes: int
    """Size of the data files of this version."""


TEXT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("collection", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
    ]
)
"""A passage's own fields. `digest` is BLAKE2b-128 of title, text and metadata: equal ones mean an unchanged passage."""


_ARROW_TYPES: Mapping[ColumnType, pa.DataType] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def metadata_fields(columns: Columns) -> list[pa.Field]:
    """Columns of further fields, null where a passage has none."""
    return [pa.field(name, _ARROW_TYPES[kind]) for name, kind in columns.items()]


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


ROW_CHECKSUM = "row_checksum"
"""Column with a checksum of what a row stores, made when it is written."""


def passage_schema(hidden_size: int | None, codec: StoredCodec | None = None) -> pa.Schema:
    """Schema of an index's table; `hidden_size` None is a table without representations (BM25).

    With a codec the column `codes` comes last, in place of `reps`.
    """
    if hidden_size is None:
        return TEXT_SCHEMA
    fields = [*TEXT_SCHEMA, *representation_fields(hidden_size)]
    if codec is None:
        return pa.schema(fields)
    return pa.schema([*(field for field in fields if field.name != "reps"), codes_field(codec.width)])
