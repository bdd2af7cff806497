"""Batches fill while another is computed, within their cost; what goes wrong stays with its item."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from diffretriever.serving.backend import Batcher


class Held:
    """Computes when it is let go, and remembers the batches."""

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
    """Ask for the first item, and for all others while it is computed."""
    held = Held()

    async def ask() -> list[object]:
        batcher = Batcher("test", held, cost, max_cost)
        first = asyncio.create_task(batcher(items[0]))
        while not held.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher(item)) for item in items[1:]]
        await asyncio.sleep(0)
        held.go.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        return list(found)

    return asyncio.run(ask()), held.batches


def test_a_batch_fills_while_the_previous_one_is_computed() -> None:
    found, batches = run([1, 2, 3, 4], lambda _: 1, 8)
    assert found == [10, 20, 30, 40]
    assert batches == [[1], [2, 3, 4]]


def test_batches_keep_the_order_and_the_maximum_cost() -> None:
    found, batches = run([1, 5, 4, 3, 99, 2], lambda item: item, 9)
    assert found == [10, 50, 40, 30, 990, 20]
    assert batches == [[1], [5, 4], [3], [99], [2]], "what costs more than a batch may goes alone"


def test_a_failed_item_does_not_fail_its_batch() -> None:
    found, batches = run([1, 2, -3, 4], lambda _: 1, 8)
    assert [found[0], found[1], found[3]] == [10, 20, 40]
    assert isinstance(found[2], ValueError)
    assert batches == [[1], [2, -3, 4], [2], [-3], [4]]
