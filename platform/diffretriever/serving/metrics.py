"""What is measured while serving; `serve` hands it to Ray's Prometheus, tests and scripts to nobody."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal["answer", "encode", "search"]
"""What is computed in batches: whole answers, or, where encoders and shards are apart, each of them."""
Stage: TypeAlias = Literal["choose", "encode", "search", "passages", "total"]


class Metrics(Protocol):
    """Takes measurements."""

    def stage(self, stage: Stage, milliseconds: float) -> None:
        """A stage of a request took so long."""

    def batch(self, kind: Kind, size: int, waiting: int) -> None:
        """A batch of `size` requests or queries begins, while `waiting` requests wait for the next."""

    def budget(self, slots: int | None) -> None:
        """A query was given so many slots."""


class NoMetrics:
    """Measures nothing."""

    def stage(self, stage: Stage, milliseconds: float) -> None:
        """Forget it."""

    def batch(self, kind: Kind, size: int, waiting: int) -> None:
        """Forget it."""

    def budget(self, slots: int | None) -> None:
        """Forget it."""
