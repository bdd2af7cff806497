"""The analysis of budget sweeps: the job's config. What its report says is beside what computes it."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from diffretriever.schemas.budget import BudgetChoice
from diffretriever.schemas.locations import Location
from diffretriever.schemas.settings import JobConfig
from diffretriever.schemas.sweep import SweepMode


class AnalyseBudgetsJob(JobConfig):
    """Write the analysis of budget sweeps: grids, oracles with controls, query features, tests. Encodes nothing."""

    sweeps: tuple[Location, ...]
    """Split folders of sweeps, such as sweeps/scifact/test, all of one retriever."""
    budget: BudgetChoice | None = None
    """Fixed budget to compare with, such as q4p16, or the selection.json of a sweep."""
    selection: Location | None = None
    """In place of --budget: split folder of a sweep on other queries, such as sweeps/scifact/train. The budget with the
    best mean there is the fixed one."""
    mode: SweepMode = "hybrid"
    """Score that chooses the fixed budget, and comes first in the report."""
    measures: tuple[str, ...] = ()
    """Measure of the report, such as nDCG@10, or of one collection or split, such as msmarco/dev=nDCG@10. Default: the
    measure in which a collection's results are published: MRR@10 for MS MARCO's train and dev queries, else nDCG@10."""
    output: Location
    """Folder for report.md with its figures, report.json and per_query.parquet."""

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if not self.sweeps:
            raise ValueError("give at least one of --sweeps")
        if (self.budget is None) == (self.selection is None):
            raise ValueError("give --budget, or --selection to choose it on other queries")
        if self.selection in self.sweeps:
            raise ValueError(f"--selection {self.selection} is among --sweeps: choose the budget on other queries")
        return self
