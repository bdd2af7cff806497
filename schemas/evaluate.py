"""Evaluation: the jobs' configs, and what they leave on disk beside the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveInt, model_validator

from schemas.base import Model
from schemas.places import IndexPlace, Place
from schemas.search import QueryBudgetOptions, SearchOptions
from schemas.settings import RayConfig

DEFAULT_MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


class EvaluateJob(SearchOptions, QueryBudgetOptions):
    """Search an index with a collection's queries, or take a finished run, and measure it against the qrels."""

    index: IndexPlace = ""
    """Folder or object-store URI of the index to search."""
    collection: str | None = None
    """Collection whose queries and qrels are used; see encode_beir.py."""
    split: str = "test"
    """Split of the qrels."""
    run: Place | None = None
    """TREC run to score in place of searching an index; needs --qrels, or --collection with --split."""
    qrels: Place | None = None
    """Qrels file, TREC (4 columns) or BEIR (3 columns), for --run."""
    output: Place
    """Folder for metrics.json, the runs, per-query results and the report."""
    measures: tuple[str, ...] = DEFAULT_MEASURES
    """Measures as ir_measures writes them."""
    top_k: PositiveInt = 1000
    """Passages kept per query."""
    exclude_self: bool = True
    """Drop a query's own document (same id), as BEIR does for ArguAna and Quora; off matches the paper."""

    @model_validator(mode="after")
    def _one_source(self) -> EvaluateJob:
        if self.run is not None:
            if self.selector is not None:
                raise ValueError("--selector goes with --index: a finished run has its budgets behind it")
            if self.index:
                raise ValueError("give --run or --index, not both")
            if self.qrels is None and self.collection is None:
                raise ValueError("--run needs --qrels FILE, or --collection and --split")
            return self
        if not self.index or self.collection is None:
            raise ValueError("give --index and --collection to search, or --run and --qrels to score a finished run")
        if self.qrels is not None:
            raise ValueError("--qrels goes with --run; with --index the collection's own qrels are used")
        return self


class DemoJob(RayConfig):
    """Encode the built-in collection with three retrievers, search its queries, compare them."""

    collection: str = "pydoc"
    """Collection to use."""
    split: str = "test"
    """Split of its qrels."""
    output: Place = Path("demo")
    """Folder for indexes and the report."""


class EvaluationReport(Model):
    """The file `metrics.json`: one retriever on one split, and all that is needed to do it again."""

    measures: dict[str, dict[str, float]]
    """Mean over queries by mode (`dense`, `sparse`, `hybrid`) and measure, named as the user wrote it."""
    intervals: dict[str, dict[str, tuple[float, float]]]
    """Bootstrap 95% interval of each of those means."""
    queries: int
    """Queries of the qrels; every one counts, also those for which nothing was retrieved."""
    collection: str | None
    """Name of the collection; None for a finished run with a qrels file."""
    split: str | None
    """Split of its qrels."""
    retriever: str
    """What retrieved, for people to read; `config` has it in full."""
    fingerprint: str | None
    """Fingerprint of the index; None for a finished run."""
    rows: int | None
    """Passages in the index; None for a finished run."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""


class ComparisonReport(Model):
    """The file `comparison.json`: several systems on the same queries."""

    title: str
    """What was compared."""
    measures: dict[str, dict[str, dict[str, float]]]
    """Mean over queries by system, mode and measure."""
    intervals: dict[str, dict[str, dict[str, tuple[float, float]]]]
    """Bootstrap 95% interval of each of those means."""
    queries: int
    """Queries of the qrels, the same for every system."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""


class SelectorReport(Model):
    """The file `selector.json` of an evaluation: what a selector chose, and what encoding took. K_q are the keys."""

    selector: str
    """Its name, such as `rule`."""
    own_budget: int
    """The retriever's own K_q."""
    mean_budget: float
    """Mean K_q over the queries."""
    queries: dict[int, int]
    """How many queries got it; the selector's budgets and the retriever's own."""
    milliseconds: dict[int, float]
    """Median time of encoding a query alone with it."""
    adaptive_milliseconds: float
    """The same with the K_q chosen, the choice included."""
    timed: int
    """Queries that were timed."""
