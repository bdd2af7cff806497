"""What the search application says of the index that it serves."""

from __future__ import annotations

from schemas.base import Model
from schemas.retriever_parts import Mode


class IndexState(Model):
    """The one version of the index that an answer comes from."""

    name: str
    """Last part of the index's place."""
    version: int
    rows: int
    """Passages in it."""
    fingerprint: str
    """Of the retriever: 16 hex digits that differ wherever a vector could."""
    committed: str
    """ISO 8601 time, UTC, at which this version came to be."""
    checked_seconds_ago: float
    """Seconds since the server last looked for a newer version."""


class LimitsInForce(Model):
    """What the server takes; more is refused with a problem that names the field."""

    max_query_chars: int
    """Characters of a query."""
    max_queries: int
    """Queries of a request."""
    max_k: int
    max_budget: int
    """Largest K_q."""
    max_passages: int
    """Passages of one ingest."""
    max_body_bytes: int
    timeout_s: float


class IndexResponse(Model):
    """Answer of `GET /index`."""

    index: IndexState
    title: str
    """The retriever for people: method, backbone and budget."""
    method: str
    """`masked`, `generated`, `pooled` or `library`."""
    modes: list[Mode]
    """Scores offered; the last one is the default."""
    query_budget: int | None
    """The retriever's own K_q; None where queries have no budget."""
    passage_budget: int
    """K_p, most vectors of a passage."""
    adaptive: str | None
    """What `budget: adaptive` is chosen by; None where it is not offered."""
    collections: dict[str, int]
    """Passages by collection."""
    limits: LimitsInForce
