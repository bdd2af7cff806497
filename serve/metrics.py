"""Measurements for Prometheus, by way of Ray's metrics; Ray adds deployment, replica and application."""

from __future__ import annotations

from ray.serve.metrics import Gauge, Histogram

from diffretriever.schemas.serve import PartState
from diffretriever.serving.metrics import Kind, Stage

_MILLISECONDS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0]
_QUERIES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
_SLOTS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


class RayMetrics:
    """To be made in a replica."""

    def __init__(self) -> None:
        self._stage = Histogram(
            "diffretriever_stage_ms", "Milliseconds of a request by stage", _MILLISECONDS, tag_keys=("stage",)
        )
        self._batch = Histogram(
            "diffretriever_batch_queries",
            "Requests (answer) or queries computed together",
            _QUERIES,
            tag_keys=("kind",),
        )
        self._waiting = Gauge("diffretriever_waiting_requests", "Requests beside the batch", tag_keys=("kind",))
        self._slots = Histogram("diffretriever_query_slots", "K_q of queries", _SLOTS)
        self._passages = Gauge("diffretriever_held_passages", "Passages of the newest version searched here")
        self._bytes = Gauge("diffretriever_held_bytes", "Bytes of the codes and postings that they are searched by")

    def stage(self, stage: Stage, milliseconds: float) -> None:
        """See `diffretriever.serving.metrics`."""
        self._stage.observe(milliseconds, tags={"stage": stage})

    def batch(self, kind: Kind, size: int, waiting: int) -> None:
        """See `diffretriever.serving.metrics`."""
        self._batch.observe(size, tags={"kind": kind})
        self._waiting.set(waiting, tags={"kind": kind})

    def budget(self, slots: int | None) -> None:
        """See `diffretriever.serving.metrics`; retrievers without slots have none to count."""
        if slots is not None:
            self._slots.observe(slots)

    def part(self, state: PartState) -> None:
        """See `diffretriever.serving.metrics`."""
        self._passages.set(state.passages)
        self._bytes.set(state.mapped_bytes)
