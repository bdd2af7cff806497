"""Searching an index, for one question or a whole set of queries: the jobs' configs, and the batch job's summary."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.places import IndexPlace, Place
from diffretriever.schemas.serve import MOST_READ_WORDS, READ_WORDS
from diffretriever.schemas.settings import EncoderActors, JobConfig, ModelOptions, SelfExclusion


class IndexOptions(ModelOptions):
    """The index, and its model."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    backbone: str | None = None
    """Path or hub id of the index's backbone, if it has moved; it must be the same weights."""
    adapter: str | None = None
    """Path or hub id of its adapter, if it has moved; it must be the same weights."""


class SearchFlags(IndexOptions):
    """The search of an index."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto`: a GPU if there is one."""
    search_budget: PositiveInt | Literal["auto", "exact"] = "auto"
    """Passages that a candidate index may retrieve for scoring; `exact`: all; `auto`: the calibrated number if
    accelerate_index.py made a candidate index, and otherwise all."""

    @property
    def search_options(self) -> SearchOptions:
        """These settings, and the defaults of those that have no flag."""
        return SearchOptions(**self.model_dump(include={*SearchOptions.model_fields}))


class ScoringFlags(SearchFlags):
    """The search of an index, and its scoring."""

    maxsim: Literal["mean", "sum-floored"] = "mean"
    """Dense score: mean over query slots (paper), or sum with negative maxima as 0 (the authors' code)."""
    score_dtype: Literal["float32", "bfloat16-legacy"] = "float32"
    """Precision of dense products; the authors' bfloat16 loses 2-5 % of the true top 10."""


class SearchOptions(ScoringFlags):
    """All settings of a search."""

    memory_mb: PositiveInt = 1024
    """MiB of memory that scoring may use besides the model and, on a GPU, besides the codes that are kept there."""


class FilterOption(JobConfig):
    """Which passages of an index are searched."""

    filter: str | None = None
    """Condition on metadata that passages must meet, such as "year >= 2020 AND lang = 'en'"; columns are those that
    inspect_index.py lists, `id` and `collection`. Dense, sparse and BM25 scores stay what they are; sums such as
    hybrid are made of the lists that are left."""


class RunOptions(JobConfig):
    """The runs."""

    modes: tuple[Mode, ...] = ()
    """Scores to rank by, as --mode of search.py takes them; default: those that the retriever makes, and its
    `default_mode`."""
    top_k: PositiveInt = 1000
    """Passages kept per query."""


class QueryBudgetOptions(JobConfig):
    """How many slots queries get."""

    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the retriever's own."""
    selector: str | None = None
    """What chooses each query's K_q from its text: the file that fit_selector.py wrote, `rule`, or `fixed:4`."""

    @model_validator(mode="after")
    def _one_k(self) -> Self:
        if self.query_budget is not None and self.selector is not None:
            raise ValueError("give --query-budget or --selector, not both")
        return self


class SearchJob(SearchFlags, FilterOption, QueryBudgetOptions):
    """Ask an index one question and see the ranked passages."""

    query: str
    """The question."""
    mode: Mode | None = None
    """Score to rank by: dense, sparse, hybrid, bm25 of the texts, or a sum such as dense+bm25 or, with weights,
    dense+0.3bm25; default: the retriever's `default_mode`, or else hybrid where it makes that, or what it makes."""
    version: PositiveInt | None = None
    """Version of the index, of those that inspect_index.py lists; default: the latest."""
    top_k: PositiveInt = 10
    """Passages to show."""
    explain: bool = False
    """Also show what each score is made of: which slots met, and words in common; for retrievers with vectors."""
    words: Annotated[int, Field(ge=0, le=MOST_READ_WORDS)] = READ_WORDS
    """With --explain: words of the whole vocabulary to show for each slot of query and passage, where the retriever's
    vectors can be read so (masked, generated, pooled)."""
    json_output: bool = False
    """Print JSON instead of text."""


class BatchSearchJob(RunOptions, SearchFlags, FilterOption, SelfExclusion, EncoderActors):
    """Search an index for many queries at once on Ray, and write TREC runs; resumable by the same command again.

    Every task scans some of the index's data files for all queries together; what they find is merged exactly.
    """

    collection: str | None = None
    """Collection whose queries are searched for; see encode_beir.py."""
    split: str = "test"
    """Split of its qrels that names the queries."""
    queries: Place | None = None
    """File of queries in place of a collection: .jsonl objects or id<TAB>text lines, either may be .gz."""
    output: Place
    """Folder for the runs, one for each mode: dense.trec, sparse.trec, hybrid.trec, dense+0.3bm25.trec."""
    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the retriever's own."""
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
