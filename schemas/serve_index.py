"""What the search application says of the index that it serves."""

from __future__ import annotations

from typing import Literal, TypeAlias

from schemas.base import Model
from schemas.retriever_parts import Mode

Way: TypeAlias = Literal["stream", "compressed", "codes", "candidates", "postings"]
"""How passages are found by a score: `stream` reads all vectors or impacts from the table, `compressed` the codes that
stand for them; `codes` and `postings` are the files that `accelerate_index.py` makes, `candidates` its candidate index.
All but the last find the same passages."""


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
    max_passage_chars: int
    """Characters of title and text of a passage."""
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
    found_by: dict[Literal["dense", "sparse"], list[Way]]
    """How passages are found for each score that the index has; in several ways where shards differ. What is made
    beside the index while it is served is used from the next version on."""
    limits: LimitsInForce
