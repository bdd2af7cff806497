"""Open versions of an index. Several stay open, so that every request reads one version throughout.

A `View` is a version that requests read. A `Snapshot` is a version, or one shard of it, open for searching.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, date
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from diffretriever.index.parts import IndexPart, shard_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import EncodedList, ListName, Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import IndexState, PartState
from diffretriever.search.accelerate import kinds_of, sizes_of
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.dense import open_dense
from diffretriever.search.encoded import EncodedSearch
from diffretriever.search.searcher import FILTERS_KEPT
from diffretriever.search.sparse import open_sparse
from diffretriever.serving.measure import Measure, unmeasured
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

KEPT_VERSIONS = 3
"""Number of open versions. Requests take seconds at most, so older versions are unused."""


class Version(NamedTuple):
    """Identifies a version of an index; `created` differs if another index replaces it."""

    created: str
    """Time at which the index was created."""
    number: int

    @classmethod
    def of(cls, index: PassageIndex) -> Self:
        """Return the version of an open index."""
        return cls(index.manifest.created, index.version)

    def follows(self, other: Version) -> bool:
        """Return whether this version replaces the other."""
        return self.created != other.created or self.number > other.number


class View:
    """One version of an index, as requests read it.

    Attributes:
        index: the open version.
        version: its identity.
        checked: `time.monotonic` when it was last confirmed as the latest.
        candidates: passages that candidate indexes retrieve per query; 0: no candidate index; None: unknown.
    """

    def __init__(self, index: PassageIndex) -> None:
        self.index = index
        self.version = Version.of(index)
        self.checked = time.monotonic()
        self.candidates: int | None = None
        self._state = IndexState(
            name=index.uri.rstrip("/").rpartition("/")[2],
            version=self.version.number,
            rows=len(index),
            fingerprint=index.manifest.fingerprint,
            committed=_committed(index),
            checked_seconds_ago=0,
        )
        self._bm25: Bm25Search | None = None
        self._filtered = lru_cache(FILTERS_KEPT)(self._admitting)
        self._opening = threading.Lock()

    def state(self) -> IndexState:
        """Return the version as responses report it, without the path of the index."""
        age = round(time.monotonic() - self.checked, 3)
        return self._state.model_copy(update={"checked_seconds_ago": age})

    @cached_property
    def collections(self) -> dict[str, int]:
        """Number of passages by collection; reads a column of the table."""
        return self.index.count_collections()

    def passages(self, rows: np.ndarray) -> dict[int, dict[str, Any]]:
        """Return the fields of the passages in these rows (int64), by row; times are ISO 8601 texts."""
        passages = self.index.shown(rows)
        for passage in passages:
            times = {name: value.isoformat() for name, value in passage["metadata"].items() if isinstance(value, date)}
            passage["metadata"] = {**passage["metadata"], **times}
        return dict(zip(rows.tolist(), passages, strict=True))

    def bm25(self, condition: str | None = None) -> Bm25Search:
        """Return BM25 over the passages that match a filter. The first call opens it or computes its statistics."""
        with self._opening:
            if self._bm25 is None:
                self._bm25 = Bm25Search(self.index)
            return self._bm25 if condition is None else self._filtered(condition)

    def _admitting(self, condition: str) -> Bm25Search:
        assert self._bm25 is not None, "BM25 is opened before it is filtered"
        return self._bm25.admitting(IndexPart.filtered(self.index, condition))


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """The result lists to search and their depth, the same for all queries of a request."""

    version: Version
    lists: tuple[EncodedList, ...]
    depth: int
    """Passages per list."""
    condition: str | None
    """Filter in the syntax of `index.filters`; None: all passages."""
    candidates: int | None = None
    """Maximum number of passages that a candidate index retrieves per query; None: the calibrated number."""


class Snapshot:
    """One version of an index, or a shard of it, open for searching."""

    def __init__(
        self, whole: PassageIndex, shard: tuple[int, int], options: SearchOptions, device: torch.device
    ) -> None:
        """Open a shard, given as (number from 0, number of shards)."""
        self.whole = whole
        number, shards = shard
        fragments = shard_fragments(whole, shards)[number] if shards > 1 else None
        self._index = whole if fragments is None else IndexPart.of_fragments(whole, fragments)
        self._options, self._device = options, device
        self._unfiltered = self._open(self._index)
        self._filtered = lru_cache(FILTERS_KEPT)(self._admitting)

    def search(self, queries: Representations, spec: SearchSpec) -> dict[ListName, Hits]:
        """Return each query's best passages for each list of `spec`, best first."""
        dense, sparse = self._unfiltered if spec.condition is None else self._filtered(spec.condition)
        if spec.candidates is not None:
            dense = dense.with_candidates(spec.candidates)
        searches = {"dense": dense.search, "sparse": sparse.search}
        return {name: searches[name](queries, spec.depth) for name in spec.lists}

    @cached_property
    def state(self) -> PartState:
        """Size of the shard, and its search methods without a filter."""
        dense, sparse = self._unfiltered
        offered = self.whole.manifest.retriever.modes
        ways: dict[EncodedList, Way] = {"dense": dense.way, "sparse": sparse.way}
        sizes = [size or 0 for kind in kinds_of(self._index) for size in sizes_of(self._index, kind)]
        return PartState(
            fragments=len(self._index.fragments()),
            passages=len(self._index),
            mapped_bytes=sum(sizes),
            candidates=dense.n_candidates,
            search_methods={name: way for name, way in ways.items() if name in offered},
        )

    def _admitting(self, condition: str) -> tuple[EncodedSearch, EncodedSearch]:
        return self._open(IndexPart.filtered(self._index, condition))

    def _open(self, index: PassageIndex) -> tuple[EncodedSearch, EncodedSearch]:
        return open_dense(index, self._options, self._device), open_sparse(index, self._options)


class Snapshots:
    """The last few versions that were opened. Thread-safe."""

    def __init__(
        self,
        options: SearchOptions,
        device: torch.device,
        shard: tuple[int, int] = (0, 1),
        measure: Measure = unmeasured,
    ) -> None:
        self._options, self._device, self._shard, self._measure = options, device, shard, measure
        self._open: dict[Version, Snapshot] = {}
        self._lock = threading.Lock()

    def get(self, version: Version) -> Snapshot:
        """Return a version, and open it if needed. Open versions are returned without waiting.

        Raises:
            ValueError: the version does not exist, or belongs to another index.
        """
        opened = self._open.get(version)
        if opened is not None:
            return opened
        index = PassageIndex.open(self._options.index, version.number)
        if Version.of(index) != version:
            raise ValueError(f"{index.uri} is another index than that of {version.created}")
        opened = Snapshot(index, self._shard, self._options, self._device)
        self._measure("index_version", version.number)
        self._measure("held_passages", opened.state.passages)
        self._measure("held_bytes", opened.state.mapped_bytes)
        with self._lock:
            self._open[version] = opened
            for old in list(self._open)[:-KEPT_VERSIONS]:
                del self._open[old]
        return opened


def _committed(index: PassageIndex) -> str:
    # Lance gives local time without a zone.
    times = {entry["version"]: entry["timestamp"] for entry in index.dataset.versions()}
    return times[index.version].astimezone(UTC).isoformat(timespec="seconds")
