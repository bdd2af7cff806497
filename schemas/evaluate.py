"""Evaluation: configs of the jobs, and their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.fusion import Fusion, named_runs
from diffretriever.schemas.locations import IndexLocation, Location, StorePath
from diffretriever.schemas.retriever import TitleJoin
from diffretriever.schemas.search import DocumentOption, FilterOption, QueryBudgetOptions, RunOptions, ScoringFlags
from diffretriever.schemas.settings import JobConfig, ModelOptions, SelfExclusion

DEFAULT_MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


_INDEX_ONLY = ("modes", "filter", "documents", "selector")
"""Settings of an evaluation that apply only to the search of an index."""


class Judgements(SelfExclusion):
    """Input: queries and qrels."""

    collection: str | None = None
    """Collection with the queries and qrels; see encode_beir.py."""
    split: str = "test"
    """Split of the qrels."""
    qrels: Location | None = None
    """Qrels file for --runs, in place of --collection: TREC (4 columns) or BEIR (3 columns)."""
    measures: tuple[str, ...] = ()
    """Measures in ir_measures' notation. Default: nDCG@10, MRR@10 and Recall@100; on TREC's MS MARCO queries, the last
    two count grades 2 and above as relevant (`rel=2`)."""
    strict: bool = False
    """Fail, and write nothing, if a warning applies to the measures, such as passages that an index lacks."""


class EvaluateJob(RunOptions, Judgements, ScoringFlags, FilterOption, DocumentOption, QueryBudgetOptions):
    """Search an index for a collection's queries, or read finished runs, and score the rankings with ir_measures."""

    index: IndexLocation = ""
    """Folder or object-store URI of the index to search."""
    runs: tuple[str, ...] = ()
    """TREC runs to measure in place of --index: RUN.trec or NAME=RUN.trec; needs --qrels, or --collection with --split.
    Two or more runs of the same queries are also fused."""
    fusions: tuple[Fusion, ...] = ("min-max",)
    """Methods to fuse --runs: `min-max` (the paper's hybrid), `z-score`, `reciprocal-rank` (1 / (60 + rank)), `linear`
    (unscaled scores)."""
    weights: tuple[NonNegativeFloat, ...] = ()
    """Weights of --runs, in the same order, such as 0.3,0.7; default: equal."""
    tune_runs: tuple[str, ...] = ()
    """Runs to tune the weights on, in place of --weights: the same retrievers and names as --runs, other queries, such
    as the training split. The grid search maximises the first of --measures in steps of 0.1."""
    tune_qrels: Location | None = None
    """Qrels file of --tune-runs."""
    output: Location
    """Folder for metrics.json, the runs, per-query results and the report."""

    @model_validator(mode="after")
    def _one_source(self) -> EvaluateJob:
        names = list(named_runs(self.runs, "--runs"))
        if bool(self.index) == bool(names):
            raise ValueError("give --index and --collection to search, or --runs and --qrels to measure finished runs")
        if self.collection is None and (self.index or self.qrels is None):
            raise ValueError("--index needs --collection; --runs needs --qrels FILE, or --collection and --split")
        if self.index and (self.qrels or self.weights or self.tune_runs):
            raise ValueError("--qrels, --weights and --tune-runs need --runs, not --index")
        for name in _INDEX_ONLY:
            if names and getattr(self, name) not in (None, ()):
                raise ValueError(f"--{name} needs --index, not --runs: finished runs cannot change")
        return self

    @model_validator(mode="after")
    def _fuses_runs(self) -> EvaluateJob:
        names, tuned = list(named_runs(self.runs, "--runs")), list(named_runs(self.tune_runs, "--tune-runs"))
        taken = sorted({*names} & {*get_args(Fusion)})
        if taken:
            raise ValueError(f"--runs: {taken[0]} is the name of a fusion method: give the run another name")
        if self.weights and (len(self.weights) != len(names) or not any(self.weights)):
            raise ValueError(f"--weights: give one for each of the {len(names)} --runs, at least one above 0")
        if bool(tuned) != (self.tune_qrels is not None) or (tuned and self.weights):
            raise ValueError("give --weights, or --tune-runs with --tune-qrels FILE")
        if tuned and sorted(tuned) != sorted(names):
            raise ValueError(f"--tune-runs must have the names of --runs: {', '.join(names)}")
        return self


Test: TypeAlias = Literal["t-test", "randomisation"]
TESTS: dict[Test, str] = {"t-test": "t-test", "randomisation": "randomisation test"}
"""Significance test → its name in reports."""


class CompareJob(Judgements, DocumentOption, ModelOptions):
    """Compare runs of the same queries: means, significance tests, and the queries that differ most."""

    runs: tuple[str, ...] = ()
    """TREC runs, NAME=RUN.trec."""
    indexes: tuple[str, ...] = ()
    """Indexes to search, NAME=INDEX, by all scores of their retrievers."""
    fusions: tuple[Fusion, ...] = ()
    """Methods to fuse all --runs with equal weights, each a row of the table: `min-max` (the paper's hybrid),
    `z-score`, `reciprocal-rank`, `linear`. Use evaluate.py for other weights, and to write the fused runs."""
    test: Test = "t-test"
    """Paired test over queries: Student's t, or Fisher's randomisation with 10,000 draws."""
    output: Location
    """Folder for comparison.json, .md, .tex, .html and .png, differences.png, and the per-query values."""

    @model_validator(mode="after")
    def _has_runs_and_qrels(self) -> CompareJob:
        runs, indexes = {*named_runs(self.runs, "--runs")}, {*self.named_indexes}
        if not indexes and len(runs) < 2:
            raise ValueError("a comparison needs two --runs, or --indexes: use evaluate.py for a single run")
        taken = sorted(({f"fused by {by}" for by in self.fusions} | indexes) & runs)
        if taken:
            raise ValueError(f"--runs: the name '{taken[0]}' is taken by another row: give the run another name")
        if (self.collection is None) == (self.qrels is None):
            raise ValueError("give --qrels FILE, or --collection and --split")
        if indexes and self.collection is None:
            raise ValueError("--indexes needs the queries of a collection: give --collection")
        if self.documents and not indexes:
            raise ValueError("--documents needs --indexes: finished runs cannot change")
        return self

    @property
    def named_indexes(self) -> dict[str, Path | StorePath]:
        """Name → path or URI of the indexes."""
        return named_runs(self.indexes, "--indexes")


class DemoJob(JobConfig):
    """Encode the built-in collection with three retrievers, search for its queries and compare the rankings."""

    collection: str = "pydoc"
    """Collection with qrels of the split `test`."""
    output: Location = Path("demo")
    """Folder for indexes and the report."""


class Overlap(Model):
    """Overlap of a ranking and the qrels."""

    queries: int
    """Queries of the qrels with ranked passages."""
    judged: float
    """Share of judged passages in these queries' top 10."""
    relevant: int
    """Passages that are relevant to any query and retrieved for any query."""
    own_first: int = 0
    """Queries whose first passage has the query's own id, and is not relevant to it."""


class Coverage(Model):
    """The share of a collection that an index contains."""

    collection: str
    """Name of the collection."""
    indexed: int
    """Passages of the collection in the index."""
    passages: int
    """Passages of the collection."""
    unfinished: bool = False
    """Whether the encode job of the collection was interrupted or is running."""
    relevant_indexed: int
    """Relevant passages in the index."""
    relevant: int
    """Passages that are relevant to any query, by the qrels."""


class Conditions(Model):
    """The conditions under which one system ranked. None: unknown, as for a run without its `metrics.json`."""

    overlap: Overlap
    retriever: str | None = None
    """Title of the retriever."""
    coverage: Coverage | None = None
    excludes_self: bool | None = None
    """Whether a query's own passage was removed from its results."""
    filter: str | None = None
    """Condition on the passages."""
    documents: str | None = None
    """Score of documents by their chunks; None: passages are ranked."""
    query_tokens: int | None = None
    """Maximum tokens of a query; None for BM25."""
    passage_tokens: int | None = None
    """Maximum tokens of a passage; None for BM25."""
    cut_passages: float | None = None
    """Share of passages that were longer than the limit, on up to 1,000 evenly spaced passages."""
    lost_tokens: float | None = None
    """Share of the passages' tokens beyond the limit, on the same passages."""
    prompt: str | None = None
    language: str | None = None
    """Language of the words of BM25 and sparse scores."""
    title_join: TitleJoin | None = None
    """Separator of title and text."""
    precision: str | None = None
    """Precision of the model's weights."""
    query_vectors: float | None = None
    """Mean K_q with a budget, otherwise the maximum vectors of a query."""
    passage_vectors: int | None = None
    """K_p, or the maximum vectors of a passage."""
    bytes_per_passage: float | None = None
    """Stored bytes of the vectors, impacts or BM25 postings that the mode searches."""
    milliseconds: float | None = None
    """Median time of a query that is encoded and searched alone."""


class EvaluationReport(Model):
    """The file `metrics.json`: measures of one retriever on one split, and how to reproduce them."""

    measures: dict[str, dict[str, float]]
    """Mean over queries by mode (such as `hybrid` or `dense+bm25`) and measure, as you wrote it; the sum for counts
    such as NumRet."""
    intervals: dict[str, dict[str, tuple[float, float]]]
    """95 % bootstrap interval of each mean."""
    queries: int
    """Queries of the qrels, including those without retrieved passages."""
    collection: str | None = None
    """Name of the collection; None for a finished run with a qrels file."""
    split: str | None = None
    retriever: str
    """Title of the retriever; `config` has all its settings."""
    fingerprint: str | None = None
    """Fingerprint of the index; None for a finished run."""
    rows: int | None = None
    """Passages in the index; None for a finished run."""
    conditions: dict[str, Conditions] = Field(default_factory=dict)
    """Conditions of each mode or run."""
    selector: str | None = None
    """Name of the selector and the K_q that it chose; None if all queries have the same K_q."""
    weights: dict[Fusion, dict[str, float]] = Field(default_factory=dict)
    """Weights of the runs in each fusion; they sum to 1."""
    warnings: tuple[str, ...] = ()
    """Limitations of the measures, such as incomplete coverage."""
    notes: tuple[str, ...] = ()
    """Decisions that affect the measures, such as self-exclusion."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    config: dict[str, Any]


class Difference(Model):
    """The difference between two systems in one measure, over the same queries."""

    system: str
    """The better system."""
    other: str
    mean: float
    """Mean difference, at least 0."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the mean difference."""
    p: float
    """Two-sided p-value of the paired test, corrected by Holm over all pairs."""
    detectable: float
    """Smallest mean difference that a paired t-test (p < .05, uncorrected) finds with a probability of 80 %."""


class ComparisonReport(Model):
    """The file `comparison.json`: several systems on the same queries."""

    title: str
    measures: dict[str, dict[str, dict[str, float]]]
    """Mean over queries by system, mode and measure."""
    intervals: dict[str, dict[str, dict[str, tuple[float, float]]]]
    """95 % bootstrap interval of each mean."""
    better_than: dict[str, dict[str, list[str]]]
    """Measure → system, with its mode if it has several → the systems that it is significantly better than."""
    test: Test
    queries: int
    """Queries of the qrels, the same for all systems."""
    differences: dict[str, list[Difference]]
    """Measure → the difference of each pair of systems, largest first."""
    ties: dict[str, dict[str, tuple[float, float, float]]] | None = None
    """System → measure → lowest, expected and highest mean over all orders of passages with equal scores. Only measures
    that the order changes; None: not measured."""
    conditions: dict[str, Conditions] = Field(default_factory=dict)
    """Conditions of each system, with its mode if it has several; fused systems have none."""
    warnings: tuple[str, ...] = ()
    """Limitations of the measures, such as incomplete coverage."""
    notes: tuple[str, ...] = ()
    """Decisions that affect the measures, such as self-exclusion."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
