"""Documents as a program has them: a list, a table of any library that speaks Arrow, or a place to read from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TypeAlias

import pyarrow as pa

from diffretriever.collections.base import BadRecord, Collection, Passage, Qrels, Query
from diffretriever.collections.records import (
    ID_FIELDS,
    TEXT_FIELDS,
    RefusedError,
    checked_passage,
    first_present,
    id_of,
    string_of,
    text_of,
)
from schemas.base import suggest

Documents: TypeAlias = Any
"""A path, URI or name as `open_collection` takes it; an iterable of texts or of mappings; or a table: a pandas or
Polars data frame, an Arrow table, anything else with Arrow's stream interface."""

_ROLES = ("id", "title", "text")
_ID_BYTES = 8
_RAW_CHARACTERS = 200


class DocumentCollection(Collection):
    """Passages in memory, without queries."""

    def __init__(self, name: str, records: list[Passage | BadRecord]) -> None:
        self.name = name
        self._records = records

    def records(self) -> Iterator[Passage | BadRecord]:
        """Yield the records in the order given."""
        return iter(self._records)

    def splits(self) -> list[str]:
        """Return none."""
        return []

    def queries(self, split: str) -> list[Query]:
        """Raise `ValueError`: there are none."""
        raise ValueError(f"'{self.name}' has documents and no queries, so no split '{split}'")

    def qrels(self, split: str) -> Qrels:
        """Raise `ValueError`: there are none."""
        raise ValueError(f"'{self.name}' has documents and no judgements, so no split '{split}'")

    def source_state(self) -> str:
        """Return how many records there are: what is in memory does not change otherwise."""
        return str(len(self._records))


def as_collection(documents: Documents, name: str = "documents", fields: Mapping[str, str] | None = None) -> Collection:
    """Return documents as a collection.

    A document without an id gets one made of its contents, so the same text is never there twice. Of several such
    documents with the same contents the first is taken.

    Args:
        documents: a path, URI or name is opened by `open_collection`; anything else is read into memory. A text is a
            passage; a mapping or a row of a table has the fields id (or _id, docid), title and text (or contents).
            Others are left out.
        name: what the collection is called where it is read into memory.
        fields: `id`, `title` or `text` → what that field is called in mappings and tables.

    Raises:
        ValueError: there are no documents, they are of another kind, or `fields` names what no document has.
    """
    if isinstance(documents, str | PathLike):
        return _opened(str(documents), fields)
    if isinstance(documents, Mapping):
        raise ValueError("documents: this is a single mapping: give a list of them, one for each document")
    called = _checked(fields or {})
    records: list[Passage | BadRecord] = []
    seen: set[str] = set()
    for number, document in enumerate(_rows(documents), start=1):
        try:
            passage, has_own_id = _passage(document, called)
        except RefusedError as refused:
            records.append(BadRecord(name, number, str(refused), repr(document)[:_RAW_CHARACTERS]))
            continue
        if has_own_id or passage.id not in seen:
            records.append(passage)
            seen.add(passage.id)
    if not records:
        raise ValueError("documents: there are none")
    return DocumentCollection(name, records)


def text_id(title: str, text: str) -> str:
    """Return an id made of a document's contents: 16 hexadecimal digits of BLAKE2b."""
    return hashlib.blake2b(f"{title}\x1f{text}".encode(), digest_size=_ID_BYTES).hexdigest()


def _opened(place: str, fields: Mapping[str, str] | None) -> Collection:
    from diffretriever.collections import open_collection

    if fields:
        raise ValueError("fields: these are for mappings and tables in memory, and a file's fields have fixed names")
    try:
        return open_collection(place)
    except ValueError as error:
        raise ValueError(f"{error} A text of yours goes in a list: [text]") from None


def _checked(fields: Mapping[str, str]) -> dict[str, str]:
    for role in fields:
        if role not in _ROLES:
            raise ValueError(f"fields: a document has no '{role}'.{suggest(role, _ROLES)}")
    return dict(fields)


def _rows(documents: Any) -> Iterable[Any]:
    if hasattr(documents, "__arrow_c_stream__"):
        table = pa.table(documents)
        return (row for batch in table.to_batches() for row in batch.to_pylist())
    if isinstance(documents, Iterable) and not isinstance(documents, bytes | bytearray):
        return documents
    raise ValueError(
        f"documents: a {type(documents).__name__} is none: give a list of texts or mappings, a data frame, an Arrow "
        "table, or where a collection lies"
    )


def _passage(document: Any, called: Mapping[str, str]) -> tuple[Passage, bool]:
    """Return the passage, and whether the document has an id of its own; raises `RefusedError`."""
    if isinstance(document, Passage):
        return checked_passage(document.id, document.title, document.text), True
    if isinstance(document, str):
        return _without_id("", document), False
    if not isinstance(document, Mapping):
        raise RefusedError(f"wrong type: a {type(document).__name__} is neither a text nor a mapping")
    text = text_of(document, (called["text"],) if "text" in called else TEXT_FIELDS)
    title = _title_of(document, called.get("title"))
    names = (called["id"],) if "id" in called else ID_FIELDS
    if "id" not in called and not any(name in document for name in names):
        return _without_id(title, text), False
    return checked_passage(id_of(document, names), title, text), True


def _title_of(fields: Mapping[str, Any], called: str | None) -> str:
    if called is not None:
        first_present(fields, (called,), "title")
    value = fields.get(called or "title")
    return "" if value is None else string_of(called or "title", value)


def _without_id(title: str, text: str) -> Passage:
    passage = checked_passage("-", title, text)
    return Passage(text_id(title, text), passage.title, passage.text)
