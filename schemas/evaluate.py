"""Evaluation: the jobs' configs, and what they leave on disk beside the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.fusion import Fusion, named_runs
from diffretriever.schemas.places import IndexPlace, Place, StorePath
from diffretriever.schemas.search import FilterOption, QueryBudgetOptions, RunOptions, ScoringFlags
from diffretriever.schemas.settings import JobConfig, ModelOptions, SelfExclusion

DEFAULT_MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


_OF_AN_INDEX = {"modes": "scores", "filter": "passages", "selector": "budgets"}
"""Settings of an evaluation that only the search of an index has, and what they decide of its runs."""


class Judgements(SelfExclusion):
    """The queries, and what is relevant to them."""

    collection: str | None = None
    """Collection whose queries and qrels are used; see encode_beir.py."""
    split: str = "test"
    """Split of the qrels."""
    qrels: Place | None = None
    """Qrels file of --runs, TREC (4 columns) or BEIR (3 columns), in place of --collection."""
    measures: tuple[str, ...] = ()
    """Measures as ir_measures writes them; default: nDCG@10, MRR@10 and Recall@100, the last two with `rel=2` for MS
    MARCO's TREC queries, whose passages TREC counts as relevant from grade 2 on."""


class EvaluateJob(RunOptions, Judgements, ScoringFlags, FilterOption, QueryBudgetOptions):
    """Search an index with a collection's queries, or take finished runs, and measure them against the qrels."""

    index: IndexPlace = ""
    """Folder or object-store URI of the index to search."""
    runs: tuple[str, ...] = ()
    """TREC runs to measure in place of searching an index: RUN.trec or NAME=RUN.trec; needs --qrels, or --collection
    with --split. Two or more, of the same queries, are also fused."""
    fusions: tuple[Fusion, ...] = ("min-max",)
    """Ways to fuse --runs: `min-max` (the paper's hybrid), `z-score`, `reciprocal-rank` (1 / (60 + rank)), `linear`
    (scores as they are)."""
    weights: tuple[NonNegativeFloat, ...] = ()
    """Weights of --runs, in their order, such as .3,.7; default: equal."""
    tune_runs: tuple[str, ...] = ()
    """In place of --weights: runs of other queries by the same retrievers, such as those of the training split, named
    as --runs. The weights that are best there by the first of --measures are taken, in steps of .1."""
    tune_qrels: Place | None = None
    """Qrels file of --tune-runs."""
    output: Place
    """Folder for metrics.json, the runs, per-query results and the report."""

    @model_validator(mode="after")
    def _one_source(self) -> EvaluateJob:
        names = list(named_runs(self.runs, "--runs"))
        if bool(self.index) == bool(names):
            raise ValueError("give --index and --collection to search, or --runs and --qrels to measure finished runs")
        if self.collection is None and (self.index or self.qrels is None):
            raise ValueError("--index needs --collection; --runs needs --qrels FILE, or --collection and --split")
        if self.index and (self.qrels or self.weights or self.tune_runs):
            raise ValueError("--qrels, --weights and --tune-runs go with --runs")
        for name, what in _OF_AN_INDEX.items():
            if names and getattr(self, name) not in (None, ()):
                raise ValueError(f"--{name} goes with --index: a finished run has its {what} behind it")
        return self

    @model_validator(mode="after")
    def _fuses_runs(self) -> EvaluateJob:
        names, tuned = list(named_runs(self.runs, "--runs")), list(named_runs(self.tune_runs, "--tune-runs"))
        taken = sorted({*names} & {*get_args(Fusion)})
        if taken:
            raise ValueError(f"--runs: a way to fuse is called {taken[0]}: give the run another name")
        if not self.fusions or len({*self.fusions}) < len(self.fusions):
            raise ValueError("--fusions: name at least one way to fuse, and none twice")
        if self.weights and (len(self.weights) != len(names) or not any(self.weights)):
            raise ValueError(f"--weights: give one for each of the {len(names)} --runs, not all of them 0")
        if bool(tuned) != (self.tune_qrels is not None) or (tuned and self.weights):
            raise ValueError("give --weights, or --tune-runs with --tune-qrels FILE")
        if tuned and sorted(tuned) != sorted(names):
            raise ValueError(f"--tune-runs must have the names of --runs: {', '.join(names)}")
        return self


Test: TypeAlias = Literal["t-test", "randomisation"]
TESTS: dict[Test, str] = {"t-test": "t-test", "randomisation": "randomisation test"}
"""A test of significance → what it is called in a sentence."""


class CompareJob(Judgements, ModelOptions):
    """Compare runs of the same queries: means, tests of significance, the queries on which they differ."""

    runs: tuple[str, ...] = ()
    """TREC runs, NAME=RUN.trec."""
    indexes: tuple[str, ...] = ()
    """Indexes to search, NAME=INDEX, each by all scores that its retriever makes."""
    fusions: tuple[Fusion, ...] = ()
    """Ways to fuse all --runs with equal weights, each a row more: `min-max` (the paper's hybrid), `z-score`,
    `reciprocal-rank`, `linear`. For other weights, and for runs of what is fused, see evaluate.py."""
    test: Test = "t-test"
    """Paired test over queries: Student's t, or Fisher's randomisation with 10,000 draws."""
    output: Place
    """Folder for comparison.json, .md, .tex, .html and .png, differences.png, and the values of every query."""

    @model_validator(mode="after")
    def _has_runs_and_qrels(self) -> CompareJob:
        runs, indexes = {*named_runs(self.runs, "--runs")}, {*self.named_indexes}
        if not indexes and len(runs) < 2:
            raise ValueError("give two --runs or more, or --indexes, to compare; evaluate.py measures one run")
        if len({*self.fusions}) < len(self.fusions):
            raise ValueError("--fusions: name none twice")
        taken = sorted(({f"fused by {by}" for by in self.fusions} | indexes) & runs)
        if taken:
            raise ValueError(f"--runs: another row is called '{taken[0]}': give the run another name")
        if (self.collection is None) == (self.qrels is None):
            raise ValueError("give --qrels FILE, or --collection and --split")
        if indexes and self.collection is None:
            raise ValueError("--indexes goes with --collection, whose queries are searched for")
        return self

    @property
    def named_indexes(self) -> dict[str, Path | StorePath]:
        """Name → place of the indexes."""
        return named_runs(self.indexes, "--indexes")


class DemoJob(JobConfig):
    """Encode the built-in collection with three retrievers, search its queries, compare them."""

    collection: str = "pydoc"
    """Collection to use, with qrels of the split `test`."""
    output: Place = Path("demo")
    """Folder for indexes and the report."""


class Coverage(Model):
    """How much of a collection an index contains."""

    indexed: int
    """Passages of the collection in the index."""
    passages: int
    """Passages of the collection."""


class EvaluationReport(Model):
    """The file `metrics.json`: one retriever on one split, and all that is needed to do it again."""

    measures: dict[str, dict[str, float]]
    """Mean over queries by mode (such as `hybrid` or `dense+bm25`) and measure, named as the user wrote it; of
    counts, such as NumRet, the sum."""
    intervals: dict[str, dict[str, tuple[float, float]]]
    """Bootstrap 95% interval of each of those means."""
    queries: int
    """Queries of the qrels; every one counts, also those for which nothing was retrieved."""
    collection: str | None = None
    """Name of the collection; None for a finished run with a qrels file."""
    split: str | None = None
    """Split of its qrels."""
    retriever: str
    """What retrieved, for people to read; `config` has it in full."""
    fingerprint: str | None = None
    """Fingerprint of the index; None for a finished run."""
    rows: int | None = None
    """Passages in the index; None for a finished run."""
    coverage: Coverage | None = None
    """Of the collection by the index; None for a finished run."""
    selector: str | None = None
    """Name of the selector and the K_q that it chose; None if all queries have the same K_q."""
    weights: dict[Fusion, dict[str, float]] = Field(default_factory=dict)
    """Weights of the runs in each fusion; their sum is 1."""
    warnings: tuple[str, ...] = ()
    """Why the measures may say less than they seem to."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""


class Overlap(Model):
    """What a run and qrels have in common."""

    queries: int
    """Queries of the qrels that the run has passages for."""
    judged: float
    """Share of those queries' first ten passages that are judged, relevant or not."""
    relevant: int
    """Passages that are judged relevant for any query, and that the run finds for any."""


class ComparisonReport(Model):
    """The file `comparison.json`: several systems on the same queries."""

    title: str
    """What was compared."""
    measures: dict[str, dict[str, dict[str, float]]]
    """Mean over queries by system, mode and measure."""
    intervals: dict[str, dict[str, dict[str, tuple[float, float]]]]
    """Bootstrap 95% interval of each of those means."""
    better_than: dict[str, dict[str, list[str]]]
    """For each measure and system, with its mode where it has several, those that it is significantly better than."""
    test: Test
    """The test of that."""
    queries: int
    """Queries of the qrels, the same for every system."""
    overlap: dict[str, Overlap] = Field(default_factory=dict)
    """By run; empty where systems are no runs."""
    coverage: dict[str, Coverage] = Field(default_factory=dict)
    """Of the collection by each index."""
    warnings: tuple[str, ...] = ()
    """Why the measures may say less than they seem to."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""
