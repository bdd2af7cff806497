"""Who encodes and searches for a request: here, in this process; `serve.remote` has the backend over deployments.

A request goes through one thread and back, once: on a busy machine every change of threads costs more than a search.

Batches fill while the one before them is computed, so that nobody waits for company and load makes batches larger.
Ray's `@serve.batch` closes a batch before the one before it has ended: without a waiting time it therefore computes
requests one by one, however many there are, and with one every lone request waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.representations import Representations
from diffretriever.schemas.serve import PartState, SearchResponse
from diffretriever.serving.answering import (
    Answering,
    CheckedRequest,
    Found,
    PlannedQuery,
    Searched,
    SearchSpec,
    not_finite_problem,
    with_bm25,
)
from diffretriever.serving.metrics import Metrics, Stage
from diffretriever.serving.problems import RequestError
from diffretriever.serving.snapshots import Snapshots, Version

QUERIES_PER_SEARCH = 64
"""Most queries that share a scan of the index."""
_CHARACTERS_PER_TOKEN = 4
_PROMPT_TOKENS = 32
"""About what a query has besides its text."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Backend(Protocol):
    """Encodes and searches.

    All methods raise `UnavailableError` when what they need is restarting or overloaded.
    """

    async def answer(self, request: CheckedRequest) -> SearchResponse:
        """Plan, encode, search and finish a request; raises `RequestError` for what is wrong with it."""

    async def encode(self, texts: list[PreparedText]) -> Representations:
        """Represent texts, in their order."""

    async def open(self, version: Version) -> None:
        """Make a version ready wherever it will be searched."""

    async def parts(self, version: Version) -> list[PartState]:
        """Say what each part of a version holds, and how it finds passages."""

    async def check(self) -> None:
        """Return if all that a search needs is there."""


class LocalBackend:
    """Does all of it in this process, the requests that wait at the same time together."""

    def __init__(self, encoder: Encoder, batch_tokens: int | None, snapshots: Snapshots, answering: Answering) -> None:
        """Answer with these.

        Args:
            encoder: that made the index.
            batch_tokens: most tokens of a batch, padding included; None: what suits the encoder's device.
            snapshots: the versions to search.
            answering: the steps around encoding and searching.
        """
        if batch_tokens is not None:
            encoder.tokens_per_batch = batch_tokens
        self._encoder, self._snapshots, self._answering = encoder, snapshots, answering
        self._batcher: Batcher[CheckedRequest, SearchResponse | RequestError] = Batcher(
            "answer", self._compute, _estimated_tokens, encoder.tokens_per_batch, self._observe
        )

    async def answer(self, request: CheckedRequest) -> SearchResponse:
        """See `Backend`."""
        answer = await self._batcher(request)
        if isinstance(answer, RequestError):
            raise answer
        return answer

    async def encode(self, texts: list[PreparedText]) -> Representations:
        """See `Backend`."""
        return await asyncio.to_thread(self._encoder.encode, texts)

    async def open(self, version: Version) -> None:
        """See `Backend`."""
        await asyncio.to_thread(self._snapshots.get, version)

    async def parts(self, version: Version) -> list[PartState]:
        """See `Backend`."""
        snapshot = await asyncio.to_thread(self._snapshots.get, version)
        return [snapshot.state]

    async def check(self) -> None:
        """See `Backend`."""

    def _compute(self, requests: list[CheckedRequest]) -> list[SearchResponse | RequestError]:
        """Answer requests together; one that is refused leaves the others as they are."""
        answers: dict[int, SearchResponse | RequestError] = {}
        planned: dict[int, list[PlannedQuery]] = {}
        for number, request in enumerate(requests):
            try:
                asked = request.asked
                planned[number] = self._answering.plan(asked.query, asked.budget, request.caps.query_slots)
            except RequestError as refused:
                answers[number] = refused
        _end_stage(requests, "choose")
        prepared = [[query.prepared for query in plan] for plan in planned.values()]
        encoded = dict(zip(planned, encode_together(self._encoder, prepared), strict=True))
        for number, plan in planned.items():
            problem = not_finite_problem(plan, encoded[number])
            if problem is not None:
                answers[number] = problem
        _end_stage(requests, "encode")
        good = [number for number in planned if number not in answers]
        found = find_together(self._snapshots, [(encoded[number], requests[number].spec) for number in good])
        found = [with_bm25(requests[n], planned[n], own) for n, own in zip(good, found, strict=True)]
        _end_stage(requests, "search")
        searched = [
            Searched(requests[number], planned[number], encoded[number], hits)
            for number, hits in zip(good, found, strict=True)
        ]
        answers.update(zip(good, self._answering.finish(searched, self._encoder.read), strict=True))
        return [answers[number] for number in range(len(requests))]

    def _observe(self, requests: list[CheckedRequest], waiting: int) -> None:
        self._answering.metrics.batch("answer", len(requests), waiting)


class EncodeBatcher:
    """Encodes the texts of several requests together, each with the slots it was prepared with."""

    def __init__(self, encoder: Encoder, batch_tokens: int | None, metrics: Metrics) -> None:
        if batch_tokens is not None:
            encoder.tokens_per_batch = batch_tokens
        self._batcher: Batcher[list[PreparedText], Representations] = Batcher(
            "encode",
            lambda requests: encode_together(encoder, requests),
            lambda texts: sum(len(text.input_ids) for text in texts),
            encoder.tokens_per_batch,
            lambda requests, waiting: metrics.batch("encode", sum(map(len, requests)), waiting),
        )

    async def __call__(self, texts: list[PreparedText]) -> Representations:
        """Represent the texts of one request."""
        return await self._batcher(texts)


class SearchBatcher:
    """Searches for the queries of several requests together, where they want the same."""

    def __init__(self, snapshots: Snapshots, metrics: Metrics) -> None:
        self._batcher: Batcher[tuple[Representations, SearchSpec], Found] = Batcher(
            "search",
            lambda requests: find_together(snapshots, requests),
            lambda request: len(request[0]),
            QUERIES_PER_SEARCH,
            lambda requests, waiting: metrics.batch("search", sum(len(each) for each, _ in requests), waiting),
        )

    async def __call__(self, queries: Representations, spec: SearchSpec) -> Found:
        """Search for the queries of one request."""
        return await self._batcher((queries, spec))


def encode_together(encoder: Encoder, requests: Sequence[list[PreparedText]]) -> list[Representations]:
    """Represent the texts of each request in batches that they share."""
    together = encoder.encode([text for texts in requests for text in texts])
    ends = np.cumsum([len(texts) for texts in requests], dtype=np.int64)
    return [together.take(np.arange(end - len(texts), end)) for texts, end in zip(requests, ends, strict=True)]


def find_together(snapshots: Snapshots, requests: Sequence[tuple[Representations, SearchSpec]]) -> list[Found]:
    """Search for each request, those that want the same version, lists, filter and candidates in one scan."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, (_, spec) in enumerate(requests):
        wanted = (spec.version, spec.lists, spec.condition, spec.candidates)
        groups.setdefault(wanted, []).append(number)
    answers: dict[int, Found] = {}
    for numbers in groups.values():
        answers.update(zip(numbers, _find(snapshots, [requests[n] for n in numbers]), strict=True))
    return [answers[number] for number in range(len(requests))]


def _find(snapshots: Snapshots, requests: list[tuple[Representations, SearchSpec]]) -> list[Found]:
    """Search as deep as the deepest request asks: the best of a shorter list are the first of a longer one."""
    first = requests[0][1]
    together = Representations.concatenate([queries for queries, _ in requests])
    depth = max(spec.depth for _, spec in requests)
    snapshot = snapshots.get(first.version)
    found = snapshot.find(together, first.lists, depth, first.condition, first.candidates)
    ends = np.cumsum([len(queries) for queries, _ in requests]).tolist()
    starts = [0, *ends[:-1]]
    return [
        {name: hits[start:end].first(spec.depth) for name, hits in found.items()}
        for (_, spec), start, end in zip(requests, starts, ends, strict=True)
    ]


def _estimated_tokens(request: CheckedRequest) -> int:
    """Return about what a request costs to encode, before it is tokenised; `Encoder.encode` counts exactly."""
    query = request.asked.query
    texts = [query] if isinstance(query, str) else query
    return sum(len(text) // _CHARACTERS_PER_TOKEN + _PROMPT_TOKENS for text in texts)


def _end_stage(requests: list[CheckedRequest], stage: Stage) -> None:
    for request in requests:
        request.clock.done(stage)


class Batcher(Generic[Item, Result]):
    """Computes items together, in one thread of its own. To be used from one event loop."""

    def __init__(
        self,
        name: str,
        compute: Callable[[list[Item]], list[Result]],
        cost: Callable[[Item], int],
        max_cost: int,
        observe: Callable[[list[Item], int], None] = lambda _items, _waiting: None,
    ) -> None:
        """Batch calls of `compute`.

        Args:
            name: of the thread.
            compute: items to as many results; called in the thread.
            cost: of an item, in any unit.
            max_cost: most that the items of a batch may cost together; an item that costs more goes alone.
            observe: called before each batch with its items and the number of items that wait for the next.
        """
        self._compute = compute
        self._cost = cost
        self._max_cost = max_cost
        self._observe = observe
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """Return the item's result, or raise what computing it raised.

        An item that spoils its batch does not spoil the others: they are computed again, one by one.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while batch := self._next():
                await self._run(batch)
        finally:
            self._worker = None

    def _next(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """Take from the front what fits; whoever has stopped waiting is left out."""
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
        items = [item for item, _ in batch]
        self._observe(items, len(self._waiting))
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self._compute, items)
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
                return
            for one in batch:
                await self._run([one])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    def close(self) -> None:
        """End the thread after what it is computing."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _fail(future: asyncio.Future[Result], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
