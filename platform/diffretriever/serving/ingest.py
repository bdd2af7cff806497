"""Adding and deleting passages while others search: one writer at a time, one commit a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from diffretriever.collections import Passage
from diffretriever.collections.metadata import in_column
from diffretriever.collections.records import RefusedError, checked_passage
from diffretriever.full_disk import full_disk
from diffretriever.index.damage import named
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock, beside, text_table, write_block
from diffretriever.representations import Representations, not_finite
from diffretriever.schemas.base import shortened, suggest
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.serve import DeleteResponse, IngestResponse, PassageIn
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serving.problems import InvalidError, NotFoundError, UnavailableError

Encode = Callable[[list[str], list[str]], Awaitable[Representations]]
"""Titles and texts to representations."""
_BUSY_S, _FULL_S = 5, 60
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a request changes."""

    new: list[Passage]
    """Passages to write, those that replace others among them."""
    collections: list[str]
    """Of each of them."""
    replaced: list[str]
    unchanged: int


class Writer:
    """Writes to the index. Requests of this process wait for each other; other processes are refused meanwhile."""

    def __init__(self, config: ServeConfig, manifest: IndexManifest, encode: Encode) -> None:
        self._config, self._manifest, self._encode = config, manifest, encode
        self._turn = asyncio.Lock()

    async def add(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """Encode and write passages in one commit; what is there as it is stays.

        Raises:
            InvalidError: a passage cannot be used; nothing has been written then.
            UnavailableError: another job writes to the index.
        """
        _check(passages, self._config)
        async with self._turn, _locked(self._config.index):
            index = await asyncio.to_thread(self._open)
            plan = await asyncio.to_thread(_plan, index, passages, _typed(passages, index.manifest.metadata))
            if plan.new:
                encoded = await self._encode([p.title for p in plan.new], [p.text for p in plan.new])
                await asyncio.to_thread(_commit, index, plan, encoded)
            return IngestResponse(
                added=len(plan.new) - len(plan.replaced),
                replaced=len(plan.replaced),
                unchanged=plan.unchanged,
                version=index.version,
            )

    async def delete(self, passage_id: str) -> DeleteResponse:
        """Delete one passage.

        Raises:
            NotFoundError: it is not there.
            UnavailableError: another job writes to the index.
        """
        async with self._turn, _locked(self._config.index):
            index = await asyncio.to_thread(self._open)
            if not await asyncio.to_thread(index.passages, [passage_id]):
                raise NotFoundError(f"there is no passage '{shortened(passage_id)}'", "check the id", "id")
            return DeleteResponse(deleted=await asyncio.to_thread(_delete, index, passage_id), version=index.version)

    def _open(self) -> PassageIndex:
        index = PassageIndex.open(self._config.index)
        if index.manifest.fingerprint != self._manifest.fingerprint:
            raise UnavailableError("the index was made anew by another retriever: restart the server")
        return index


@asynccontextmanager
async def _locked(uri: str) -> AsyncIterator[None]:
    """Hold the writer's lock, or refuse the request; on an object store, taking it and giving it back are requests."""
    lock = WriterLock(uri, patient=False)

    def give_back() -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(None, lock.__exit__, None, None, None)

    taken = asyncio.ensure_future(asyncio.to_thread(lock.__enter__))
    try:
        await asyncio.shield(taken)
    except asyncio.CancelledError:
        # The thread that takes it goes on.
        taken.add_done_callback(lambda done: None if done.cancelled() or done.exception() else give_back())
        raise
    except ValueError as error:
        _LOG.warning("passages are not written: %s", error)
        raise UnavailableError("another job is writing to the index", _BUSY_S) from None
    try:
        yield
    finally:
        await give_back()


def _check(passages: Sequence[PassageIn], config: ServeConfig) -> None:
    limits = config.limits
    if len(passages) > limits.max_passages:
        fix = f"send at most {limits.max_passages} at a time; a whole collection is a job for encode_beir.py"
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
            raise InvalidError(str(refused), "mend the passage, or leave it out", field) from None
        if passage.id in seen:
            raise InvalidError(f"the id '{shortened(passage.id)}' comes twice", "send each id once", f"{field}.id")
        seen.add(passage.id)


def _typed(passages: Sequence[PassageIn], columns: Columns) -> list[Passage]:
    """Return the passages with metadata as the index keeps it; raises InvalidError for what has no column."""
    made = []
    for number, passage in enumerate(passages):
        metadata = {}
        for name, value in passage.metadata.items():
            field = f"passages.{number}.metadata.{name}"
            if name not in columns:
                known = suggest(name, columns).strip() if columns else "leave it out: the index keeps no metadata"
                raise InvalidError(f"the index has no column '{shortened(name)}'", known, field)
            try:
                metadata[name] = in_column(name, value, columns[name])
            except RefusedError:
                raise InvalidError(f"the value of '{name}' is no {columns[name]}", "send one, or null", field) from None
        kept = {name: value for name, value in metadata.items() if value is not None}
        made.append(Passage(passage.id, passage.title, passage.text, kept))
    return made


def _plan(index: PassageIndex, asked: Sequence[PassageIn], passages: Sequence[Passage]) -> _Plan:
    """Return what is not there as it is; `passages` are those that were asked for, with metadata as it is kept."""
    there = index.passages([passage.id for passage in passages])
    collections = [each.collection for each in asked]
    new = [
        (passage, collection)
        for passage, collection in zip(passages, collections, strict=True)
        if there.get(passage.id) != _as_shown(index, passage, collection)
    ]
    replaced = [passage.id for passage, _ in new if passage.id in there]
    return _Plan([passage for passage, _ in new], [own for _, own in new], replaced, len(passages) - len(new))


def _as_shown(index: PassageIndex, passage: Passage, collection: str) -> dict[str, object]:
    metadata = {name: passage.metadata.get(name) for name in index.manifest.metadata}
    return {"title": passage.title, "text": passage.text, "collection": collection, "metadata": metadata}


def _commit(index: PassageIndex, plan: _Plan, encoded: Representations) -> None:
    wrong = not_finite(encoded).tolist()
    if wrong:
        detail = f"{named([plan.new[row].id for row in wrong])} would be stored with NaN or infinity"
        raise InvalidError(detail, "leave it out, and tell whoever runs this server", "passages")
    table = beside(text_table(plan.new, plan.collections, index.manifest.metadata), encoded.to_arrow())
    try:
        with _answered_if_full("written"):
            Committer(index).commit({"request": write_block(index.uri, table)}, plan.replaced)
    except ValueError:
        raise UnavailableError("another job has just changed the index; nothing was written", _BUSY_S) from None


def _delete(index: PassageIndex, passage_id: str) -> int:
    try:
        with _answered_if_full("deleted"):
            return index.delete([passage_id])
    except ValueError:
        raise UnavailableError("another job has just changed the index; nothing was deleted", _BUSY_S) from None


@contextmanager
def _answered_if_full(done: str) -> Iterator[None]:
    """Refuse a request for whose change there is no room; the log says where."""
    try:
        yield
    except OSError as error:
        if full_disk(error) is None:
            raise
        _LOG.error("nothing is %s: %s", done, error)
        raise UnavailableError(f"the disk of the index is full; nothing was {done}", _FULL_S) from None
