"""The interface to encoding and searching, and its implementation in this process. `serve.remote` has the other one.

A batch fills while the previous one is computed, so that a single request never waits and load makes batches larger.
Ray's `@serve.batch` closes a batch earlier: it needs a waiting time, which delays every single request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.mode import ListName
from diffretriever.schemas.serve import PartState, Reading
from diffretriever.serving.measure import Measure, unmeasured
from diffretriever.serving.snapshots import SearchSpec, Snapshots, Version
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

Lists: TypeAlias = Mapping[ListName, Hits]
"""Each query's best passages, by result list."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Backend(Protocol):
    """Encodes and searches. `encode`, `search` and `read` block: call them in a thread.

    All methods raise `UnavailableError` while a part that they need restarts or is overloaded.

    Attributes:
        threads: number of batches to compute concurrently.
        batch_tokens: maximum tokens in a batch of requests; 0: one request per batch.
    """

    threads: int
    batch_tokens: int

    def encode(self, requests: Sequence[list[PreparedText]]) -> list[Representations]:
        """Encode the texts of each request."""

    def search(self, requests: Sequence[tuple[Representations, SearchSpec]]) -> list[tuple[Lists, tuple[int, ...]]]:
        """Search for the queries of each request; return the lists, and the shards that did not respond."""

    def read(self, vectors_MH: np.ndarray, words: int) -> list[Reading]:
        """Return the tokens that each vector predicts; see `Encoder.read`."""

    async def open(self, version: Version) -> None:
        """Open a version on all parts that search it."""

    async def parts(self, version: Version) -> list[PartState]:
        """Return the size and the search methods of each shard."""

    async def check(self) -> None:
        """Raise UnavailableError unless all parts that a search needs are alive."""


class LocalBackend:
    """Encodes and searches in this process."""

    threads = 1

    def __init__(self, encoder: Encoder, snapshots: Snapshots) -> None:
        self._encoder, self._snapshots = encoder, snapshots
        self.batch_tokens = encoder.tokens_per_batch

    def encode(self, requests: Sequence[list[PreparedText]]) -> list[Representations]:
        """See `Backend`."""
        return encode_together(self._encoder, requests)

    def search(self, requests: Sequence[tuple[Representations, SearchSpec]]) -> list[tuple[Lists, tuple[int, ...]]]:
        """See `Backend`."""
        return [(lists, ()) for lists in search_together(self._snapshots, requests)]

    def read(self, vectors_MH: np.ndarray, words: int) -> list[Reading]:
        """See `Backend`."""
        return self._encoder.read(vectors_MH, words)

    async def open(self, version: Version) -> None:
        """See `Backend`."""
        await asyncio.to_thread(self._snapshots.get, version)

    async def parts(self, version: Version) -> list[PartState]:
        """See `Backend`."""
        snapshot = await asyncio.to_thread(self._snapshots.get, version)
        return [snapshot.state]

    async def check(self) -> None:
        """See `Backend`."""


def encode_together(encoder: Encoder, requests: Sequence[list[PreparedText]]) -> list[Representations]:
    """Encode the texts of all requests in shared batches."""
    encoded = encoder.encode([text for texts in requests for text in texts])
    ends = np.cumsum([len(texts) for texts in requests], dtype=np.int64)
    return [encoded.take(np.arange(end - len(texts), end)) for texts, end in zip(requests, ends, strict=True)]


def search_together(snapshots: Snapshots, requests: Sequence[tuple[Representations, SearchSpec]]) -> list[Lists]:
    """Search for each request; requests that differ only in depth share a scan.

    The scan uses the largest depth: shorter lists are prefixes of it.
    """
    groups: dict[SearchSpec, list[int]] = {}
    for number, (_, spec) in enumerate(requests):
        groups.setdefault(replace(spec, depth=0), []).append(number)
    results: dict[int, Lists] = {}
    for numbers in groups.values():
        deepest = max((requests[number][1] for number in numbers), key=lambda spec: spec.depth)
        merged = Representations.concatenate([requests[number][0] for number in numbers])
        lists = snapshots.get(deepest.version).search(merged, deepest)
        end = 0
        for number in numbers:
            queries, spec = requests[number]
            start, end = end, end + len(queries)
            results[number] = {name: hits[start:end].first(spec.depth) for name, hits in lists.items()}
    return [results[number] for number in range(len(requests))]


class Batcher(Generic[Item, Result]):
    """Computes items in batches, in threads of its own. Use it from one event loop."""

    def __init__(
        self,
        name: str,
        compute: Callable[[list[Item]], list[Result]],
        cost: Callable[[Item], int],
        max_cost: int,
        measure: Measure = unmeasured,
        threads: int = 1,
    ) -> None:
        """Batch calls of `compute` up to `max_cost`. An item above it is a batch of its own."""
        self._name, self._compute, self._measure = name, compute, measure
        self._cost, self._max_cost, self._threads = cost, max_cost, threads
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._workers: set[asyncio.Task[None] | None] = set()

    async def __call__(self, item: Item) -> Result:
        """Return the item's result, or raise its error.

        If a batch fails, its items are computed one by one, so that only the faulty item fails.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._workers) < self._threads:
            self._workers.add(asyncio.create_task(self._work()))
        return await future

    async def _work(self) -> None:
        try:
            while batch := self._next():
                await self._run(batch)
        finally:
            self._workers.remove(asyncio.current_task())

    def _next(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        total = 0
        while self._waiting:
            item, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            total += self._cost(item)
            if batch and total > self._max_cost:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        self._measure("batch_requests", len(batch), self._name)
        self._measure("waiting_requests", len(self._waiting), self._name)
        items = [item for item, _ in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._pool, self._compute, items)
        except Exception as error:
            if len(batch) > 1:
                for entry in batch:
                    await self._run([entry])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
