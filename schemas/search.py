"""Configs of the search jobs, and the summary of a batch search."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.documents import DocumentScore
from diffretriever.schemas.locations import IndexLocation, Location
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import MOST_READ_WORDS, READ_WORDS
from diffretriever.schemas.settings import EncoderActors, JobConfig, ModelOptions, SelfExclusion


class IndexOptions(ModelOptions):
    """Index: location and model."""

    index: IndexLocation
    """Folder or object-store URI of the index."""
    backbone: str | None = None
    """New path or hub id of the index's backbone, if it has moved. The weights must be the same."""
    adapter: str | None = None
    """New path or hub id of the index's adapter, if it has moved. The weights must be the same."""


class SearchBudgetOption(IndexOptions):
    """Search: candidates."""

    search_budget: PositiveInt | Literal["auto", "exact"] = "auto"
    """Passages that a candidate index may retrieve for scoring; `exact`: all; `auto`: the calibrated number if
    accelerate_index.py made a candidate index, and otherwise all."""

    @property
    def search_options(self) -> SearchOptions:
        """All search settings, with defaults for those without a flag."""
        return SearchOptions(**self.model_dump(include={*SearchOptions.model_fields}))


class SearchFlags(SearchBudgetOption):
    """Search: candidates and device."""

    device: str = "auto"
    """Device: `cpu`, `cuda`, `cuda:1`, or `auto`, a GPU if available."""


class ScoringFlags(SearchFlags):
    """Search: scoring."""

    maxsim: Literal["mean", "sum-floored"] = "mean"
    """Dense score: mean over query slots (paper), or sum with negative maxima as 0 (the authors' code)."""
    score_dtype: Literal["float32", "bfloat16-legacy"] = "float32"
    """Precision of dense products; the authors' bfloat16 loses 2-5 % of the true top 10."""


class SearchOptions(ScoringFlags):
    """All settings of a search."""

    memory_mb: PositiveInt = 1024
    """MiB of memory for scoring, in addition to the model and to 8-bit codes kept on a GPU."""


class FilterOption(JobConfig):
    """Search: condition on metadata."""

    filter: str | None = None
    """Condition on metadata, such as "year >= 2020 AND lang = 'en'". Columns: those that inspect_index.py lists, `id`
    and `collection`. Dense, sparse and BM25 scores do not change; sums such as hybrid use the filtered lists."""


class DocumentOption(JobConfig):
    """Search: documents by their chunks."""

    documents: DocumentScore | None = None
    """Rank documents in place of chunks `ID#1`, `ID#2`, …: `max` scores a document by its best chunk, `first` by its
    first, `mean-3` by the mean of its 3 best (any number)."""


class RunOptions(JobConfig):
    """Search: modes and depth of the runs."""

    modes: tuple[Mode, ...] = ()
    """Scoring modes, as in --mode of search.py; default: the retriever's own scores and its `default_mode`."""
    top_k: PositiveInt = 1000
    """Passages or documents kept per query."""


class QueryBudgetOptions(JobConfig):
    """Search: query budget."""

    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the retriever's own."""
    selector: str | None = None
    """Selector of each query's K_q from its text: a file of fit_selector.py, `rule`, or `fixed:4`."""

    @model_validator(mode="after")
    def _check_one_query_budget(self) -> Self:
        if self.query_budget is not None and self.selector is not None:
            raise ValueError("give --query-budget or --selector, not both")
        return self


class SearchJob(SearchFlags, FilterOption, DocumentOption, QueryBudgetOptions):
    """Search an index for one query and print the ranked passages."""

    query: str
    """Text of the query."""
    mode: Mode | None = None
    """Scoring mode: dense, sparse, hybrid, bm25, or a sum such as dense+bm25 or dense+0.3bm25. Default: the retriever's
    `default_mode`, otherwise hybrid if supported, otherwise its only score."""
    version: PositiveInt | None = None
    """Version of the index (inspect_index.py lists them); default: the latest."""
    top_k: PositiveInt = 10
    """Passages or documents to show."""
    explain: bool = False
    """Explain each score by its matched slots and shared terms; for retrievers with vectors."""
    words: Annotated[int, Field(ge=0, le=MOST_READ_WORDS)] = READ_WORDS
    """With --explain: number of predicted vocabulary tokens to show per slot, for masked, generated and pooled
    retrievers."""
    json_output: bool = False
    """Print JSON instead of text."""


class BatchSearchJob(RunOptions, SearchBudgetOption, FilterOption, SelfExclusion, EncoderActors):
    """Search an index for many queries on Ray and write TREC runs; run the same command again to resume.

    Each task scans some of the index's data files for all queries. The merged results are exact.
    """

    collection: str | None = None
    """Collection that contains the queries; see encode_beir.py."""
    split: str = "test"
    """Split of the qrels that selects the queries."""
    queries: Location | None = None
    """File of queries, instead of a collection: .jsonl objects or id<TAB>text lines, optionally .gz."""
    output: Location
    """Folder for the runs, one per mode, such as dense.trec or dense+0.3bm25.trec."""
    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the retriever's own."""

    @model_validator(mode="after")
    def _one_source(self) -> BatchSearchJob:
        if (self.collection is None) == (self.queries is None):
            raise ValueError("give either --collection or --queries")
        return self


class BatchSearchSummary(Model):
    """The outcome of a batch search."""

    queries: int
    passages: int
    """Passages searched."""
    parts: int
    """Tasks executed by this job."""
    parts_found: int
    """Tasks finished by an earlier, interrupted job."""
    seconds: float
    """Duration, excluding the start of Ray."""
    runs: dict[Mode, str]
    """Path or URI of each run."""
