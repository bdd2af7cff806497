"""Other systems that budgets are measured against: how they are named on a command line, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import model_validator

from schemas.base import Model
from schemas.budget import Budget, BudgetChoice
from schemas.settings import JobConfig
from schemas.sweep import SweepMode


class AgainstTest(Model):
    """The fixed budget, or an oracle over budgets, less another system, by the paired two-sided t-test over queries."""

    collection: str
    """As collection/split; `average` weighs every set alike, and its test pools the queries."""
    mode: SweepMode
    """Score of the budgets; the other system is one run, whatever made it."""
    system: str
    """Name of the other system."""
    system_mean: float
    side: Literal["fixed", "query", "passage", "joint"]
    """The fixed budget, or what the oracle adapts."""
    mean: float
    difference: float
    """Mean less the other system's."""
    interval: tuple[float, float]
    """Bootstrap 95% interval of the difference."""
    carried: float | None
    """Difference of what carries over of the oracle; None for the fixed budget, or without such evidence."""
    t_test: float
    """p of the difference."""
    t_test_holm: float
    """The same, corrected by Holm for the four sides."""


def runs_by_name(given: Sequence[str], n_sweeps: int) -> dict[str, tuple[Path, ...]]:
    """Return name → runs, one for each sweep, from texts such as `BM25=runs/bm25.trec`.

    Raises:
        ValueError: a text of another form, or a name that has not a run for each sweep.
    """
    runs: dict[str, list[Path]] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise ValueError(f"--against '{text}': write NAME=RUN.trec, for example BM25=runs/bm25.trec")
        runs.setdefault(name, []).append(Path(path))
    for name, paths in runs.items():
        if len(paths) != n_sweeps:
            raise ValueError(
                f"--against {name} has {len(paths)} runs, but there are {n_sweeps} --sweeps: give {name}=RUN.trec once "
                "for each sweep, in their order"
            )
    return {name: tuple(paths) for name, paths in runs.items()}


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


Interval: TypeAlias = tuple[float, float]
"""Low and high end of a bootstrap 95% interval."""


class AnalyseBudgetsJob(JobConfig):
    """Write the analysis of budget sweeps: grids, oracles with controls, query features, tests. Encodes nothing."""

    sweeps: tuple[Path, ...]
    """Split folders of sweeps, such as sweeps/scifact/test, all of one retriever."""
    budget: BudgetChoice | None = None
    """The fixed budget that all is measured against: q4p16, say, or the selection.json of a sweep."""
    selection: Path | None = None
    """In place of --budget: the split folder of a sweep on other queries, such as sweeps/scifact/train; the budget with
    the best mean there is the fixed one."""
    mode: SweepMode = "hybrid"
    """Score that chooses the fixed budget, and comes first in the report."""
    measure: str = "nDCG@10"
    """Measure of the report."""
    against: tuple[str, ...] = ()
    """Another system to measure budgets and oracles against, as NAME=RUN.trec: once for each sweep, in their order."""
    qrels: tuple[Path, ...] = ()
    """Judgements for those runs, a file for each sweep; default: those of the collections that were swept."""
    output: Path
    """Folder for report.md with its figures, report.json and per_query.parquet."""

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if not self.sweeps:
            raise ValueError("give at least one of --sweeps")
        if (self.budget is None) == (self.selection is None):
            raise ValueError("give --budget, or --selection to choose it on other queries")
        if self.selection in self.sweeps:
            raise ValueError(f"--selection {self.selection} is among --sweeps: choose the budget on other queries")
        runs_by_name(self.against, len(self.sweeps))
        if self.qrels and (not self.against or len(self.qrels) != len(self.sweeps)):
            raise ValueError("--qrels goes with --against: give a file for each of --sweeps, in their order")
        return self


class GridMeans(Model):
    """Means of one mode on one set of queries."""

    collection: str
    """As collection/split; `average` is the mean of all, each the same weight; `selection` comes before them."""
    mode: SweepMode
    means: tuple[tuple[float, ...], ...]
    """By K_q, then K_p."""
    best: Budget
    """The cell with the highest mean; of equals the one with fewer slots."""
    spread: float
    """Highest mean less lowest."""


class OracleGain(Model):
    """What choosing a budget per query by its result would gain over the fixed budget."""

    collection: str
    mode: SweepMode
    side: Literal["query", "passage", "joint"]
    """What is adapted."""
    fixed: float
    """Mean measure of the fixed budget."""
    headroom: float
    """What the oracle gains."""
    headroom_interval: Interval
    dataset: float
    """What the best fixed choice for these queries gains, found on other folds of them."""
    carried: float | None
    """What carries over to other budgets of the other side, `dataset` included; None where there are none."""
    carried_interval: Interval | None
    luck: float | None
    """The control: headroom less carried."""
    luck_interval: Interval | None


class Coefficient(Model):
    """A rank correlation; None where a side is constant."""

    value: float | None
    low: float | None
    high: float | None


class FeatureCorrelation(Model):
    """How a query feature goes with the oracle's K_q."""

    collection: str
    """As collection/split, or `pooled`."""
    mode: SweepMode
    feature: str
    queries: Literal["all", "decided"]
    """`decided`: only those for which K_q makes a difference."""
    n: int
    spearman: Coefficient
    kendall: Coefficient


class CellTest(Model):
    """One budget against the fixed one, by paired two-sided tests over queries."""

    collection: str
    """As collection/split; `average` pools the queries."""
    mode: SweepMode
    budget: Budget
    mean: float
    difference: float
    """Mean less the fixed budget's."""
    t_test: float
    """p of the paired t-test."""
    t_test_holm: float
    """The same, corrected by Holm for all cells of this collection and mode."""
    randomisation: float
    """p of the paired randomisation test."""
    randomisation_holm: float
    """The same, corrected likewise."""


class SystemTest(Model):
    """A budget against the smallest one, as the paper's tables have it."""

    collection: str
    mode: SweepMode
    system: Literal["smallest", "fixed", "best"]
    """`best` is the best cell of these very queries."""
    budget: Budget
    mean: float
    t_test: float | None
    """p of the paired t-test against `smallest`, corrected by Holm for the two of a column; None for itself."""
    better: bool
    """Better than `smallest` with p below .05."""


class ScoringVariant(Model):
    """One way to score dense representations (paper §6.1)."""

    collection: str
    variant: Literal["single", "pooled slots", "MaxSim"]
    mean: float
    interval: Interval
    against_previous: float | None
    """p of the paired t-test against the variant before; None for the first."""


class AnalysisReport(Model):
    """The file `report.json`."""

    retriever: str
    fingerprint: str
    measure: str
    fixed: Budget
    chosen: str
    """How the fixed budget was chosen, in words."""
    query_budgets: tuple[int, ...]
    passage_budgets: tuple[int, ...]
    modes: tuple[SweepMode, ...]
    """Those that all sweeps have, the main one first."""
    queries: dict[str, int]
    """Queries by collection/split."""
    grids: tuple[GridMeans, ...]
    oracles: tuple[OracleGain, ...]
    correlations: tuple[FeatureCorrelation, ...]
    systems: tuple[SystemTest, ...]
    cells: tuple[CellTest, ...]
    scoring: tuple[ScoringVariant, ...]
    """Empty where the sweeps have no pooled slots."""
    similarities: tuple[SlotSimilarity, ...]
    """Empty where the sweeps no longer have indexes and encoded queries."""
    wins: tuple[SlotWins, ...]
    """Likewise, or where no dense runs are there."""
    against: tuple[AgainstTest, ...]
    """Empty without --against."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""
