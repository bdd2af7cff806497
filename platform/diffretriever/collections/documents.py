"""Collections of documents in memory: texts, mappings, or tables of any library that supports Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from diffretriever.collections.base import Collection
from diffretriever.collections.records import (
    ID_FIELDS,
    BadRecord,
    Passage,
    RefusedError,
    bad_record,
    checked_passage,
    passage_of,
)
from diffretriever.schemas.base import suggest

if TYPE_CHECKING:
    import pyarrow as pa

Documents: TypeAlias = Any
"""An iterable of texts or of mappings, or a table: a pandas or Polars data frame, an Arrow table, anything else with
Arrow's stream interface."""

_ROLES = ("id", "title", "text")
_INDEX_OF_PANDAS = "__index_level_"
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class DocumentCollection(Collection):
    """Passages in memory."""

    name: str
    passages: list[Passage | BadRecord]

    def records(self) -> Iterator[Passage | BadRecord]:
        """Yield the records in input order."""
        return iter(self.passages)

    def source_state(self) -> str:
        """Return the number of records."""
        return str(len(self.passages))


def as_collection(documents: Documents, name: str = "documents", fields: Mapping[str, str] | None = None) -> Collection:
    """Convert documents to a collection.

    A document without an id gets a hash of its contents as id; duplicates of such documents are dropped.

    Args:
        documents: texts, or mappings or table rows with the fields id (or another of `ID_FIELDS`), title and text (or
            contents). Other fields are metadata; an index ignores lists and objects.
        name: name of the collection.
        fields: maps `id`, `title` or `text` to names of fields.

    Raises:
        ValueError: `documents` is empty or of an unsupported type, or `fields` has an unknown role.
    """
    if isinstance(documents, str):
        raise ValueError("documents: this is a single text: give a list of them")
    if isinstance(documents, Mapping):
        raise ValueError("documents: this is a single mapping: give a list of them, one for each document")
    records = list(passages_of(_rows(documents), name, checked_fields(fields or {})))
    if not records:
        raise ValueError("documents: the list is empty: give at least one document")
    return DocumentCollection(name, records)


def passages_of(documents: Iterable[Any], shown: str, fields: Mapping[str, str]) -> Iterator[Passage | BadRecord]:
    """Yield the passage of each document, without duplicates of documents that have no id.

    A `RefusedError` becomes a bad record. Bad records have the file `shown` and lines from 1.
    """
    seen: set[str] = set()
    for number, document in enumerate(documents, start=1):
        try:
            passage, has_id = _passage(document, fields)
        except RefusedError as refused:
            yield bad_record(shown, number, str(refused), repr(document))
            continue
        if not has_id and passage.id in seen:
            continue
        if not has_id:
            seen.add(passage.id)
        yield passage


def text_id(title: str, text: str) -> str:
    """Return an id derived from a document's contents: 16 hex digits of BLAKE2b."""
    return hashlib.blake2b(f"{title}\x1f{text}".encode(), digest_size=_ID_BYTES).hexdigest()


def flat_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a table that are neither nested nor the index of pandas."""
    import pyarrow as pa

    return [
        field.name
        for field in schema
        if not pa.types.is_nested(field.type) and not field.name.startswith(_INDEX_OF_PANDAS)
    ]


def rows_of_batch(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yield rows of the columns of `flat_columns` as mappings, with an empty tuple for each nested value."""
    import pyarrow as pa

    nested: dict[str, Any] = {field.name: () for field in schema if pa.types.is_nested(field.type)}
    # Python's datetime is limited to microseconds.
    fields = [
        pa.field(field.name, pa.timestamp("us", field.type.tz) if pa.types.is_timestamp(field.type) else field.type)
        for field in batch.schema
    ]
    return ({**row, **nested} for row in batch.cast(pa.schema(fields), safe=False).to_pylist())


def checked_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `fields`; raises ValueError for a role other than id, title and text."""
    for role in fields:
        if role not in _ROLES:
            raise ValueError(f"fields: a document has no '{role}'.{suggest(role, _ROLES)}")
    return dict(fields)


def _rows(documents: Any) -> Iterable[Any]:
    if hasattr(documents, "__arrow_c_stream__"):
        import pyarrow as pa

        table = pa.table(documents)
        flat = table.select(flat_columns(table.schema))
        return (row for batch in flat.to_batches() for row in rows_of_batch(batch, table.schema))
    if isinstance(documents, Iterable) and not isinstance(documents, bytes | bytearray):
        return documents
    raise ValueError(
        f"documents: unsupported type {type(documents).__name__}: give a list of texts or mappings, a data frame, an "
        "Arrow table, or the path of a collection"
    )


def _passage(document: Any, names: Mapping[str, str]) -> tuple[Passage, bool]:
    """Return the passage, and whether the document has its own id."""
    if isinstance(document, RefusedError):
        raise document
    if isinstance(document, Passage):
        return checked_passage(document.id, document.title, document.text, document.extra), True
    if isinstance(document, str):
        return _with_text_id(checked_passage("-", "", document)), False
    if not isinstance(document, Mapping):
        raise RefusedError(f"wrong type: a {type(document).__name__} is neither a text nor a mapping")
    id_field = names.get("id") or next((name for name in ID_FIELDS if name in document), None)
    passage = passage_of(document, names, id_field)
    return (_with_text_id(passage), False) if id_field is None else (passage, True)


def _with_text_id(passage: Passage) -> Passage:
    return replace(passage, id=text_id(passage.title, passage.text))
