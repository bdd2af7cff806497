"""The analysis of budget sweeps: the job's config, and what its report says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import model_validator

from schemas.against import AgainstTest, runs_by_name
from schemas.base import Model
from schemas.budget import Budget, BudgetChoice
from schemas.settings import JobConfig
from schemas.slots import SlotSimilarity, SlotWins
from schemas.sweep import SweepMode

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
