"""What is measured while serving. `serve.metrics` hands it to Prometheus by way of Ray; tests measure nothing."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from diffretriever.schemas.serve import PartState

Kind: TypeAlias = Literal["answer", "encode", "search"]
"""What is computed in batches: whole answers, or, where encoders and shards are apart, each of them."""
Stage: TypeAlias = Literal["choose", "encode", "search", "passages", "total"]


class Metrics(Protocol):
    """Takes measurements."""

    def stage(self, stage: Stage, milliseconds: float) -> None:
        """Record how long a stage of a request took."""

    def batch(self, kind: Kind, size: int, waiting: int) -> None:
        """Record that a batch of `size` requests or queries begins, and that `waiting` requests wait for the next."""

    def budget(self, slots: int | None) -> None:
        """Record the K_q of a query; None where queries have no budget."""

    def reduced(self, level: int) -> None:
        """Count an answer for which something was lowered, at a level of `serving.load`."""

    def partial(self) -> None:
        """Count an answer for which some shard was left out."""

    def part(self, version: int, state: PartState) -> None:
        """Record the newest version of the index, and what it holds here."""


class NoMetrics:
    """Measures nothing."""

    def stage(self, stage: Stage, milliseconds: float) -> None:
        """Do nothing."""

    def batch(self, kind: Kind, size: int, waiting: int) -> None:
        """Do nothing."""

    def budget(self, slots: int | None) -> None:
        """Do nothing."""

    def reduced(self, level: int) -> None:
        """Do nothing."""

    def partial(self) -> None:
        """Do nothing."""

    def part(self, version: int, state: PartState) -> None:
        """Do nothing."""
