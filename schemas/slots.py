"""What an analysis says of slots: how different those of a text are, and which of them answer."""

from __future__ import annotations

from typing import Literal

from schemas.base import Model
from schemas.budget import Budget


class SlotSimilarity(Model):
    """How alike the slots of a query, or of a passage, are."""

    collection: str
    """As collection/split."""
    side: Literal["query", "passage"]
    slots: int
    """K_q or K_p, more than 1."""
    texts: int
    """How many were looked at, with more than one slot each."""
    cosine: float
    """Mean over texts of the mean cosine over the pairs of a text's slots; 1: all are one vector."""
    interval: tuple[float, float]
    """Bootstrap 95% interval of it."""


class SlotWins(Model):
    """Which passage slot MaxSim takes for each query slot, over queries with their top-ranked passages."""

    collection: str
    """As collection/split."""
    budget: Budget
    """The fixed budget."""
    queries: int
    passages: int
    """Pairs of a query and a passage."""
    shares: tuple[tuple[float, ...], ...]
    """By query slot, then passage slot: the share of the pairs in which it wins; each row adds up to 1."""
    in_use: float
    """Two to the entropy of the passage slots' shares over all query slots: how many are as good as in use."""
