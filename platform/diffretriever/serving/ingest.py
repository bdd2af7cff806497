"""Add and delete passages while other requests search: one commit per request. `add` and `delete` block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from diffretriever.collections import Passage
from diffretriever.collections.metadata import in_column
from diffretriever.collections.records import RefusedError, checked_passage
from diffretriever.core.full_disk import full_disk
from diffretriever.index.damage import named
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock, join_columns, text_table, write_block
from diffretriever.schemas.base import shortened, suggest
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.serve import DeleteResponse, IngestResponse, PassageIn, ServeLimits
from diffretriever.serving.problems import InvalidError, NotFoundError, UnavailableError
from diffretriever.vectors.representations import Representations, not_finite

_BUSY_S, _FULL_S = 5, 60
_LOG = logging.getLogger(__name__)


def check(passages: Sequence[PassageIn], limits: ServeLimits) -> None:
    """Raise InvalidError for the first invalid passage."""
    if len(passages) > limits.max_passages:
        fix = f"send at most {limits.max_passages} at a time; for a collection, run encode_beir.py"
        raise InvalidError(f"there are {len(passages)} passages", fix, "passages")
    seen: set[str] = set()
    for number, passage in enumerate(passages):
        field = f"passages.{number}"
        size = len(passage.title) + len(passage.text)
        if size > limits.max_passage_chars:
            fix = f"shorten it to {limits.max_passage_chars} characters, or send parts of it"
            raise InvalidError(f"the passage has {size} characters", fix, field)
        try:
            checked_passage(passage.id, passage.title, passage.text)
            checked_passage("collection", "", passage.collection)
        except RefusedError as refused:
            raise InvalidError(str(refused), "correct the passage, or leave it out", field) from None
        if passage.id in seen:
            raise InvalidError(f"the id '{shortened(passage.id)}' occurs twice", "send each id once", f"{field}.id")
        seen.add(passage.id)


def add(
    uri: str,
    manifest: IndexManifest,
    passages: Sequence[PassageIn],
    encode: Callable[[list[str], list[str]], Representations],
) -> IngestResponse:
    """Encode passages and write them in one commit, except unchanged ones.

    Args:
        uri: path or URI of the index.
        manifest: manifest of the served index.
        passages: passages that `check` accepts.
        encode: returns the representations of titles and texts.

    Raises:
        InvalidError: metadata without a column, or a passage that cannot be encoded; nothing is written.
        UnavailableError: another job writes to the index, or the disk is full.
    """
    with _changing(uri, manifest, "written") as index:
        requested = _with_metadata(passages, index.manifest.metadata)
        stored = index.passages([passage.id for passage in requested])
        new, collections = [], []
        for passage, collection in zip(requested, (item.collection for item in passages), strict=True):
            if stored.get(passage.id) != _as_stored(index, passage, collection):
                new.append(passage)
                collections.append(collection)
        replaced = [passage.id for passage in new if passage.id in stored]
        if new:
            encoded = encode([passage.title for passage in new], [passage.text for passage in new])
            wrong = not_finite(encoded).tolist()
            if wrong:
                detail = f"{named([new[row].id for row in wrong])} would be stored with NaN or infinity"
                raise InvalidError(detail, "leave it out, and report it to the operator of this server", "passages")
            table = join_columns(text_table(new, collections, index.manifest.metadata), encoded.to_arrow())
            Committer(index).commit({"request": write_block(index.uri, table)}, replaced)
        return IngestResponse(
            added=len(new) - len(replaced),
            replaced=len(replaced),
            unchanged=len(requested) - len(new),
            version=index.version,
        )


def delete(uri: str, manifest: IndexManifest, passage_id: str) -> DeleteResponse:
    """Delete one passage; raise a problem if it is unknown or the index is not writable."""
    with _changing(uri, manifest, "deleted") as index:
        if not index.passages([passage_id]):
            raise NotFoundError(f"there is no passage '{shortened(passage_id)}'", "check the id", "id")
        return DeleteResponse(deleted=index.delete([passage_id]), version=index.version)


@contextmanager
def _changing(uri: str, manifest: IndexManifest, done: str) -> Iterator[PassageIndex]:
    """Yield the latest version under the writer lock; turn write errors into problems."""
    try:
        with WriterLock(uri, patient=False):
            index = PassageIndex.open(uri)
            if index.manifest.fingerprint != manifest.fingerprint:
                raise UnavailableError("an index of another retriever has replaced this one: restart the server")
            yield index
    except ValueError as error:
        _LOG.warning("nothing was %s: %s", done, error)
        detail = f"another job writes to the index, or it cannot be written to; nothing was {done}"
        raise UnavailableError(detail, _BUSY_S) from None
    except OSError as error:
        if full_disk(error) is None:
            raise
        _LOG.error("nothing was %s: %s", done, error)
        raise UnavailableError(f"the disk of the index is full; nothing was {done}", _FULL_S) from None


def _with_metadata(passages: Sequence[PassageIn], columns: Columns) -> list[Passage]:
    made = []
    for number, passage in enumerate(passages):
        metadata = {}
        for name, value in passage.metadata.items():
            field = f"passages.{number}.metadata.{name}"
            if name not in columns:
                known = suggest(name, columns).strip() if columns else "leave it out: the index has no metadata"
                raise InvalidError(f"the index has no column '{shortened(name)}'", known, field)
            try:
                metadata[name] = in_column(name, value, columns[name])
            except RefusedError:
                raise InvalidError(
                    f"the value of '{name}' is not of type {columns[name]}", "send one, or null", field
                ) from None
        kept = {name: value for name, value in metadata.items() if value is not None}
        made.append(Passage(passage.id, passage.title, passage.text, kept))
    return made


def _as_stored(index: PassageIndex, passage: Passage, collection: str) -> dict[str, object]:
    metadata = {name: passage.metadata.get(name) for name in index.manifest.metadata}
    return {"title": passage.title, "text": passage.text, "collection": collection, "metadata": metadata}
