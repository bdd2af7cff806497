"""Searching for a whole set of queries: the job's config, and what it says at its end."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt, model_validator

from schemas.base import Model
from schemas.jobs import RayConfig, SearchOptions
from schemas.retriever_parts import Mode


class BatchSearchJob(RayConfig, SearchOptions):
    """Search an index for many queries at once on Ray, and write TREC runs; resumable by the same command again.

    Every task scans some of the index's data files for all queries together; what they find is merged exactly.
    """

    collection: str | None = None
    """Collection whose queries are searched for; see encode_beir.py."""
    split: str = "test"
    """Split of its qrels that names the queries."""
    queries: Path | None = None
    """File of queries in place of a collection: .jsonl objects or id<TAB>text lines, either may be .gz."""
    output: Path
    """Folder for the runs, one for each mode: dense.trec, sparse.trec, hybrid.trec."""
    modes: tuple[Mode, ...] = ()
    """Scores to rank by; default: all that the index offers."""
    top_k: PositiveInt = 1000
    """Passages kept per query."""
    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the retriever's own."""
    exclude_self: bool = True
    """Drop a query's own document (same id), as BEIR does for ArguAna and Quora; off matches the paper."""
    searchers: PositiveInt | None = None
    """Tasks that search at the same time, each with its own `--memory-mb`; default: what the cluster has room for."""
    queries_at_once: PositiveInt = 5000
    """Queries that share a scan of the index. What is kept for them takes about 30 kB each at the default depth."""

    @model_validator(mode="after")
    def _one_source(self) -> BatchSearchJob:
        if (self.collection is None) == (self.queries is None):
            raise ValueError("give either --collection or --queries")
        return self


class BatchSearchSummary(Model):
    """The outcome of a batch search."""

    queries: int
    """Queries in the runs."""
    passages: int
    """Passages searched."""
    parts: int
    """Tasks that were run now; none is run twice."""
    parts_found: int
    """Tasks whose results an earlier attempt had left."""
    seconds: float
    """Duration without Ray's start."""
    runs: dict[Mode, str]
    """Where each run is."""
