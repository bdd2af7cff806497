"""The manifest of an index, and the Arrow schema of its table.

The table's schema metadata store the manifest, so that both change together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import Field

from diffretriever.schemas.base import Model
from diffretriever.schemas.codec import StoredCodec
from diffretriever.schemas.metadata import Columns, ColumnType
from diffretriever.schemas.retriever import RetrieverConfig

MANIFEST_FORMAT = 1


class IndexManifest(Model):
    """The retriever of an index and the storage of its vectors, fixed when the index is created."""

    format: int = MANIFEST_FORMAT
    """Version of the table layout."""
    retriever: RetrieverConfig
    """The retriever's config, with resolved `auto` values."""
    weights: str | None = None
    """Digest of the backbone's weights; None for BM25."""
    tokenizer: str | None = None
    """Digest of the backbone's tokenizer; None for BM25 and if the weights' digest covers it."""
    libraries: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries that tokenised and encoded. Not in the fingerprint."""
    hidden_size: int | None = None
    """H, the dimension of the stored vectors; None for BM25."""
    vocab_size: int | None = None
    """Size of the vocabulary of the impacts."""
    created: str
    """ISO 8601 time, UTC."""
    codec: StoredCodec | None = None
    """Codec of the column `codes`, which replaces `reps`; None for an index without it. Not in the fingerprint."""
    metadata: Columns = Field(default_factory=dict)
    """Metadata columns. Not in the fingerprint."""

    @property
    def text_columns(self) -> list[str]:
        """Columns of a passage's text fields and metadata, as in `text_table`."""
        return [*TEXT_SCHEMA.names, *self.metadata]

    def stored_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the stored columns for `columns`: `codes` replaces `reps` in an index with a codec."""
        if self.codec is None:
            return list(columns)
        return list(dict.fromkeys("codes" if name == "reps" else name for name in columns))

    @property
    def title(self) -> str:
        """Readable name: the retriever's title, and the codec if there is one."""
        stored = "" if self.codec is None else f", {self.codec.name}"
        return f"{self.retriever.title}{stored}"

    @property
    def fingerprint(self) -> str:
        """16 hex digits of config, weights, tokenizer and layout, which determine the vectors; excludes paths."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """Return the fields that the fingerprint covers, as JSON values."""
        identity = {"format": self.format, "weights": self.weights, "retriever": self.retriever.identity()}
        return identity if self.tokenizer is None else {**identity, "tokenizer": self.tokenizer}


class CollectionRecords(Model):
    """The file `collections.json` of an index."""

    locations: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Name of a collection → paths or URIs of its sources."""
    unfinished: tuple[str, ...] = ()
    """Collections whose encode job was interrupted or is running."""


class IndexContents(Model):
    """Counts of an index, read from its table."""

    rows: int
    """Number of passages."""
    collections: dict[str, int]
    """Passages by collection."""
    version: int
    fragments: int
    """Fragments of the table (groups of data files); compaction joins them."""
    deleted_rows: int
    """Rows marked as deleted; compaction removes them."""
    bytes: int
    """Size of this version's data files."""


TEXT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("collection", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
    ]
)
"""Text fields of a passage. `digest` is BLAKE2b-128 of title, text and metadata, and shows changed passages."""


_ARROW_TYPES: Mapping[ColumnType, pa.DataType] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def metadata_fields(columns: Columns) -> list[pa.Field]:
    """Return the metadata columns, which are nullable."""
    return [pa.field(name, _ARROW_TYPES[kind]) for name, kind in columns.items()]


def representation_fields(hidden_size: int) -> list[pa.Field]:
    """Return the encoder's columns: ragged unit vectors (fp16), predicted tokens of slots, impacts by token id."""
    vector = pa.list_(pa.field("item", pa.float16(), nullable=False), hidden_size)
    return [
        pa.field("reps", pa.list_(pa.field("item", vector, nullable=False)), nullable=False),
        pa.field("slot_tokens", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("impact_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("impact_weights", pa.list_(pa.field("item", pa.float32(), nullable=False)), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
    ]


def codes_field(width: int) -> pa.Field:
    """Return the column of quantised vectors, `width` bytes per vector."""
    row = pa.list_(pa.field("item", pa.uint8(), nullable=False), width)
    return pa.field("codes", pa.list_(pa.field("item", row, nullable=False)), nullable=False)


ROW_CHECKSUM = "row_checksum"
"""Column with a checksum of the row, computed when it is written."""


def passage_schema(hidden_size: int | None, codec: StoredCodec | None = None) -> pa.Schema:
    """Return the schema of an index's table; `hidden_size` is None for BM25, which has no representations.

    With a codec, the last column is `codes`, in place of `reps`.
    """
    if hidden_size is None:
        return TEXT_SCHEMA
    fields = [*TEXT_SCHEMA, *representation_fields(hidden_size)]
    if codec is None:
        return pa.schema(fields)
    return pa.schema([*(field for field in fields if field.name != "reps"), codes_field(codec.width)])
