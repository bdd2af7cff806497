"""Measurements of a server, as a callback. `serve.metrics` passes them to Prometheus through Ray."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

Measured: TypeAlias = Literal[
    "stage_ms",
    "batch_requests",
    "waiting_requests",
    "query_slots",
    "reduced_requests",
    "partial_answers",
    "held_passages",
    "index_version",
    "held_bytes",
]


class Measure(Protocol):
    """Receives measurements; `tag` names a stage, a batch or a load level."""

    def __call__(self, name: Measured, value: float, tag: str = "") -> None:
        """Record a value."""


def unmeasured(name: Measured, value: float, tag: str = "") -> None:
    """Record nothing."""
