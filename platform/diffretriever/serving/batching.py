"""Batches that fill while the one before them is computed: nobody waits for company, and load makes batches larger.

Ray's `@serve.batch` closes a batch before the one before it has ended: without a waiting time it therefore computes
requests one by one, however many there are, and with one every lone request waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Computes items together, in one thread of its own.

    To be used from one event loop.
    """

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
            observe: told of every batch, and of how many items wait beside it.
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
