"""Versions of an index that stay open side by side, so that every request is answered from one of them.

A `View` is the version that requests are answered from now, and what is said of it. A `Snapshot` is a version that is
open for searching.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, date
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from diffretriever.index.parts import IndexPart, shard_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations
from diffretriever.schemas.metadata import Scalar
from diffretriever.schemas.mode import EncodedList, ListName, Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import IndexState, PartState
from diffretriever.scoring.hits import BoundedHits, Hits
from diffretriever.search.accelerate import kinds_of, sizes_of
from diffretriever.search.base import FILTERS_KEPT, find_lists
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.base import SparseSearch
from diffretriever.serving.metrics import Metrics, NoMetrics

KEPT_VERSIONS = 3
"""Versions kept open. A request takes seconds at most, so none is still being answered from an older one."""


class Version(NamedTuple):
    """Which index lies at a place, and which of its versions: another may be put there that has the same numbers."""

    created: str
    """When the index was made."""
    number: int

    @classmethod
    def of(cls, index: PassageIndex) -> Self:
        """Return what is open."""
        return cls(index.manifest.created, index.version)

    def follows(self, other: Version) -> bool:
        """Return whether this is to be served in place of the other, which lay there before."""
        return self.created != other.created or self.number > other.number


class View:
    """One version of an index, and what requests read of it apart from searching.

    Attributes:
        index: the version.
        version: which it is.
        checked: time (`time.monotonic`) at which it was known to be the latest.
        candidates: passages that candidate indexes name for a query, 0 where there are none; None: not known yet.
    """

    def __init__(self, index: PassageIndex) -> None:
        self.index = index
        self.version = Version.of(index)
        self._rows = len(index)
        self._committed = _committed(index)
        self._fingerprint = index.manifest.fingerprint
        self.checked = time.monotonic()
        self.candidates: int | None = None
        self._bm25: dict[str | None, asyncio.Future[Bm25Search]] = {}

    async def bm25(self, condition: str | None) -> Bm25Search:
        """Return BM25 of the texts, which finds the passages that a condition admits, or all.

        It is opened, or built, when it is first asked for; who asks meanwhile waits for the same.
        """
        found = self._bm25.get(condition)
        if found is None:
            found = self._bm25[condition] = asyncio.ensure_future(self._opened_bm25(condition))
            for each in [each for each in self._bm25 if each is not None][: max(0, len(self._bm25) - 1 - FILTERS_KEPT)]:
                del self._bm25[each]
        try:
            # Who stops waiting leaves it to the others.
            return await asyncio.shield(found)
        except Exception:
            self._bm25.pop(condition, None)
            raise

    async def _opened_bm25(self, condition: str | None) -> Bm25Search:
        if condition is None:
            return await asyncio.to_thread(Bm25Search, self.index)
        of_all = await self.bm25(None)
        return await asyncio.to_thread(lambda: of_all.admitting(IndexPart.filtered(self.index, condition)))

    @cached_property
    def collections(self) -> dict[str, int]:
        """Passages by collection; counting them reads a column of the table."""
        return self.index.count_collections()

    def state(self) -> IndexState:
        """Return which version this is. The name is the last part of the index's path, which itself is kept back."""
        return IndexState(
            name=self.index.uri.rstrip("/").rpartition("/")[2],
            version=self.version.number,
            rows=self._rows,
            fingerprint=self._fingerprint,
            committed=self._committed,
            checked_seconds_ago=round(time.monotonic() - self.checked, 3),
        )

    def texts(self, rows: np.ndarray) -> dict[int, dict[str, Any]]:
        """Return what hits show of the passages in these rows (int64), by row; times in their metadata are texts."""
        shown = self.index.shown(rows)
        for each in shown:
            each["metadata"] = {name: _as_json(value) for name, value in each["metadata"].items()}
        return dict(zip(rows.tolist(), shown, strict=True))

    def representations(self, rows: np.ndarray) -> dict[int, Representations]:
        """Return what is stored of the passages in these rows (int64), by row, each with N = 1."""
        stored = self.index.representations(rows)
        return {row: stored.take(np.array([place])) for place, row in enumerate(rows.tolist())}


@dataclass(frozen=True, slots=True)
class ShardNumber:
    """Which share of the fragments a searcher owns: share `number`, from 0, of `of` shares."""

    number: int = 0
    of: int = 1


class Snapshot:
    """One version of an index, or a shard of it, ready to be searched.

    Attributes:
        whole: the version.
    """

    def __init__(self, whole: PassageIndex, shard: ShardNumber, options: SearchOptions, device: torch.device) -> None:
        """Open a version, or a shard of it.

        Args:
            whole: the version.
            shard: which share of its fragments.
            options: of the searches.
            device: of dense searches.
        """
        self.whole = whole
        self._index = _part_of(whole, shard)
        self._options, self._device = options, device
        self._own = _searches(self._index, options, device)
        self._filtered = lru_cache(FILTERS_KEPT)(self._admitting)

    def find(
        self,
        queries: Representations,
        lists: Sequence[EncodedList],
        depth: int,
        condition: str | None,
        candidates: int | None = None,
        *,
        bounds: bool = False,
    ) -> dict[ListName, Hits | BoundedHits]:
        """Search the shard; scores are exact, or those of dense lists within bounds.

        Args:
            queries: encoded.
            lists: what to search by.
            depth: passages found for each query in each list.
            condition: a filter of `index.filters`; None: all passages are admitted.
            candidates: the most that a candidate index names for a query; None: as many as it was calibrated to.
            bounds: whether bounds are enough.

        Returns:
            For each list, each query's best passages, best first.
        """
        dense, sparse = self._own if condition is None else self._filtered(condition)
        if candidates is not None:
            dense = dense.among(candidates)
        return find_lists((dense, sparse), queries, lists, depth, bounds=bounds)

    @cached_property
    def state(self) -> PartState:
        """What there is to search, and how it is searched, unfiltered."""
        dense, sparse = self._own
        offered = self.whole.manifest.retriever.modes
        ways: dict[EncodedList, Way] = {"dense": dense.way, "sparse": sparse.way}
        sizes = [size or 0 for kind in kinds_of(self._index) for size in sizes_of(self._index, kind)]
        return PartState(
            fragments=len(self._index.fragments()),
            passages=len(self._index),
            mapped_bytes=sum(sizes),
            candidates=dense.n_candidates,
            found_by={name: way for name, way in ways.items() if name in offered},
        )

    def _admitting(self, condition: str) -> tuple[DenseSearch, SparseSearch]:
        return _searches(IndexPart.filtered(self._index, condition), self._options, self._device)


def _searches(index: PassageIndex, options: SearchOptions, device: torch.device) -> tuple[DenseSearch, SparseSearch]:
    return open_dense(index, options, device), open_sparse(index, options)


class Snapshots:
    """The last few versions that were asked for. Safe to use from several threads."""

    def __init__(
        self,
        options: SearchOptions,
        device: torch.device,
        shard: ShardNumber | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Open versions when they are asked for.

        Args:
            options: of the searches.
            device: of dense searches.
            shard: which share of the fragments; None: all.
            metrics: told the newest version and what it holds; None: nobody is.
        """
        self._options, self._device = options, device
        self._shard = shard or ShardNumber()
        self._metrics = metrics or NoMetrics()
        self._open: OrderedDict[Version, Future[Snapshot]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, version: Version) -> Snapshot:
        """Return a version, opened if need be. Whoever wants one that is open never waits for another to be opened.

        Raises:
            ValueError: there is no such version, or no longer, or another index is there now.
        """
        with self._lock:
            mine = version not in self._open
            found = self._open.setdefault(version, Future())
            self._open.move_to_end(version)
        if mine:
            self._fill(version, found)
        return found.result()

    def _fill(self, version: Version, found: Future[Snapshot]) -> None:
        try:
            snapshot = Snapshot(_opened(self._options.index, version), self._shard, self._options, self._device)
            self._metrics.part(version.number, snapshot.state)
        except BaseException as error:
            # All who wait for it hear of it, and who comes later tries again.
            with self._lock:
                self._open.pop(version, None)
            found.set_exception(error)
            return
        found.set_result(snapshot)
        with self._lock:
            ready = [number for number, each in self._open.items() if each.done()]
            for number in ready[: max(0, len(ready) - KEPT_VERSIONS)]:
                del self._open[number]


def _as_json(value: Scalar | None) -> bool | int | float | str | None:
    return value.isoformat() if isinstance(value, date) else value


def _opened(uri: str, version: Version) -> PassageIndex:
    index = PassageIndex.open(uri, version.number)
    if Version.of(index) != version:
        raise ValueError(f"another index is at {uri} than that of {version.created}")
    return index


def _part_of(whole: PassageIndex, shard: ShardNumber) -> PassageIndex:
    if shard.of == 1:
        return whole
    return IndexPart.of_fragments(whole, shard_fragments(whole, shard.of)[shard.number])


def _committed(index: PassageIndex) -> str:
    # Lance gives local time without a zone.
    times = {each["version"]: each["timestamp"] for each in index.dataset.versions()}
    return times[index.version].astimezone(UTC).isoformat(timespec="seconds")
