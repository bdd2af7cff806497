"""Batches fill while another is computed, up to a cost, and isolate failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from diffretriever.serving.backend import Batcher


class PausedCompute:
    """Computes once `go` is set, and records the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        assert self.go.wait(5)
        if any(item < 0 for item in items):
            raise ValueError("a negative item")
        return [10 * item for item in items]


def run(items: list[int], cost: Callable[[int], int], max_cost: int) -> tuple[list[object], list[list[int]]]:
    """Submit the first item, and all others while it is computed."""
    compute = PausedCompute()

    async def ask() -> list[object]:
        batcher = Batcher("test", compute, cost, max_cost)
        first = asyncio.create_task(batcher(items[0]))
        while not compute.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher(item)) for item in items[1:]]
        await asyncio.sleep(0)
        compute.go.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        return list(results)

    return asyncio.run(ask()), compute.batches


def test_a_batch_fills_while_the_previous_one_is_computed() -> None:
    results, batches = run([1, 2, 3, 4], lambda _: 1, 8)
    assert results == [10, 20, 30, 40]
    assert batches == [[1], [2, 3, 4]]


def test_batches_keep_the_order_and_the_maximum_cost() -> None:
    results, batches = run([1, 5, 4, 3, 99, 2], lambda item: item, 9)
    assert results == [10, 50, 40, 30, 990, 20]
    assert batches == [[1], [5, 4], [3], [99], [2]]


def test_a_failed_item_does_not_fail_its_batch() -> None:
    results, batches = run([1, 2, -3, 4], lambda _: 1, 8)
    assert [results[0], results[1], results[3]] == [10, 20, 40]
    assert isinstance(results[2], ValueError)
    assert batches == [[1], [2, -3, 4], [2], [-3], [4]]
