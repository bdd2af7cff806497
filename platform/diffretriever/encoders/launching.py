"""Texts on their way through a device, batch by batch, until they are put together again in their order.

One batch is launched at a time, whichever thread it is of, and finished without the device. On a GPU a launch returns
at once: passes and copies are queued, and an event says when their results are there. On a CPU a launch computes.

Legend: N texts, B those of a batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from diffretriever.encoders.representations import Representations

if TYPE_CHECKING:
    import torch

# Beyond as many texts, results are finished while the device works on later ones. A block of the encode job has fewer:
# its results are finished while the device works on the next block.
_MOST_UNFINISHED = 1024
T = TypeVar("T")


class Launched(Generic[T]):
    """A batch that was given to a device."""

    def __init__(self, finish: Callable[[], T], wait: Callable[[], float]) -> None:
        """Know the batch.

        Args:
            finish: makes something of the device's results, without the device.
            wait: waits for them; returns the seconds in which the device worked on the batch alone.
        """
        self._finish, self._wait = finish, wait

    def result(self) -> tuple[T, float]:
        """Wait for the device; return what is made of its results, and its seconds."""
        seconds = self._wait()
        return self._finish(), seconds


class Launcher:
    """Gives batches to a device, so that no two of them are in its memory at once, nor their seconds counted twice."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()

    def launch(self, begin: Callable[[], Callable[[], T]]) -> Launched[T]:
        """Give the device a batch, when it is this thread's turn.

        Args:
            begin: has the device compute, by `to_host` at the end; returns what makes something of the results.

        Raises:
            torch.OutOfMemoryError: there is no memory for the batch.
        """
        with self._lock:
            return self._on_gpu(begin) if self._device.type == "cuda" else self._on_cpu(begin)

    def _on_cpu(self, begin: Callable[[], Callable[[], T]]) -> Launched[T]:
        start = time.perf_counter()
        finish = begin()
        seconds = time.perf_counter() - start
        return Launched(finish, lambda: seconds)

    def _on_gpu(self, begin: Callable[[], Callable[[], T]]) -> Launched[T]:
        import torch

        stream = torch.cuda.current_stream(self._device)
        # A thread that waits for such an event sleeps; others would spin.
        started, ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        started.record(stream)
        finish = begin()
        ended.record(stream)

        def wait() -> float:
            ended.synchronize()
            return float(started.elapsed_time(ended)) / 1000

        return Launched(finish, wait)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU; a GPU's values are in it once what was launched is waited for, and not before."""
    import torch

    if tensor.device.type == "cpu":
        return tensor
    # To other memory than pinned one nothing is copied while the host goes on.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What texts took that were encoded by one call."""

    tokens: int
    """Real tokens, prompt and slots included."""
    padded_tokens: int
    """The same with padding; equal where texts are packed."""
    device_seconds: float
    """In which the device worked on them alone."""


class Encoded(NamedTuple):
    """Texts that a device is done with."""

    parts: list[Representations]
    """All texts, in their order: once, or once for each of several budgets."""
    cost: BatchCost


class Encoding:
    """Texts of which a device has been given batches."""

    def __init__(self) -> None:
        self._tokens = self._padded_tokens = 0
        self._batches: list[np.ndarray] = []
        self._launched: deque[Launched[list[Representations]]] = deque()
        self._results: list[tuple[list[Representations], float]] = []

    def add(
        self, texts_B: np.ndarray, launched: Launched[list[Representations]], tokens: int, padded_tokens: int
    ) -> None:
        """Take a batch that the device was given.

        Args:
            texts_B: numbers of its texts.
            launched: what makes their representations, once or for each of several budgets.
            tokens: all that its texts have.
            padded_tokens: the same with padding.
        """
        self._batches.append(texts_B)
        self._launched.append(launched)
        self._tokens += tokens
        self._padded_tokens += padded_tokens
        while sum(map(len, self._batches[len(self._results) :])) > _MOST_UNFINISHED:
            self._finish_oldest()

    def finish(self) -> Encoded:
        """Wait for the device, and return all texts, which must have been given to it; to be called once."""
        while self._launched:
            self._finish_oldest()
        results, self._results = self._results, []
        cost = BatchCost(self._tokens, self._padded_tokens, sum(seconds for _, seconds in results))
        if len(self._batches) == len(self._batches[0]) == 1:
            # A query alone, whose answer is waited for.
            return Encoded(results[0][0], cost)
        order_N = np.argsort(np.concatenate(self._batches), kind="stable")
        parts = zip(*(made for made, _ in results), strict=True)
        return Encoded([Representations.concatenate(part).take(order_N) for part in parts], cost)

    def _finish_oldest(self) -> None:
        self._results.append(self._launched.popleft().result())
