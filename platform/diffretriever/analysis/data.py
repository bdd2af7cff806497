"""What an analysis works on: the outcomes of all sweeps, read once, and the fixed budget.

Legend: Q queries, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diffretriever.analysis.other_systems import read_others
from diffretriever.analysis.swept_features import available_features, query_features
from diffretriever.budgets.outcomes import Outcomes
from diffretriever.budgets.splits import SweptSplit, open_splits
from schemas.analyse import AnalyseBudgetsJob
from schemas.budget import Budget
from schemas.selection import read_selection
from schemas.sweep import SweepMode

SCORES: tuple[SweepMode, ...] = ("dense", "sparse", "hybrid")


@dataclass(frozen=True, slots=True)
class AnalysisData:
    """Sweeps of one retriever on several sets of queries.

    Attributes:
        splits: by name, such as `scifact/test`.
        measure: of all outcomes.
        modes: scores that all sweeps have, the main one first; pooled slots are not among them.
        fixed: the budget that all is measured against.
        chosen: how it was chosen, in words.
        selection: outcomes of the main mode on the queries that chose it, if any.
        outcomes: (name, mode) → outcomes, also of pooled slots where all sweeps have them.
        feature_names: those that can be computed for all sets.
        features: name → float64 [Q, F], columns as in `feature_names`.
        others: (other system, name) → its values, float64 [Q].
    """

    splits: dict[str, SweptSplit]
    measure: str
    modes: tuple[SweepMode, ...]
    fixed: Budget
    chosen: str
    selection: Outcomes | None
    feature_names: tuple[str, ...]
    outcomes: dict[tuple[str, SweepMode], Outcomes] = field(default_factory=dict)
    features: dict[str, np.ndarray] = field(default_factory=dict)
    others: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The sets of queries, in the order given."""
        return list(self.splits)

    @property
    def has_pooled_slots(self) -> bool:
        """Whether all sweeps scored pooled slots and MaxSim."""
        return all((name, mode) in self.outcomes for name in self.names for mode in ("pooled-slots", "dense"))


def read_data(job: AnalyseBudgetsJob) -> AnalysisData:
    """Read all that the report needs.

    Raises:
        ValueError: sweeps that do not belong together, or lack the mode, the measure or the budget; runs of other
            systems that cannot be measured on the same queries.
    """
    splits = open_splits([*job.sweeps, *([job.selection] if job.selection is not None else [])])
    analysed = splits[: len(job.sweeps)]
    selection = splits[-1].outcomes(job.mode, job.measure) if job.selection is not None else None
    fixed, chosen = _given(job.budget, analysed)
    if selection is not None:
        fixed, chosen = selection.best(), f"best mean {job.measure} of {job.mode} on {splits[-1].name}"
    assert fixed is not None, "the config has checked this"
    common = [mode for mode in (*SCORES, "pooled-slots") if all(mode in s.manifest.modes for s in analysed)]
    data = AnalysisData(
        splits={split.name: split for split in analysed},
        measure=job.measure,
        modes=(job.mode, *(mode for mode in SCORES if mode in common and mode != job.mode)),
        fixed=fixed,
        chosen=chosen,
        selection=selection,
        feature_names=available_features(analysed),
    )
    for name, split in data.splits.items():
        for mode in dict.fromkeys((job.mode, *common)):
            data.outcomes[name, mode] = split.outcomes(mode, job.measure)
        found = data.outcomes[name, job.mode]
        found.place(fixed)
        data.features[name] = query_features(split, found.queries, data.feature_names)
    queries = {name: data.outcomes[name, job.mode].queries for name in data.names}
    data.others.update(read_others(job, data.splits, queries))
    return data


def _given(budget: Budget | Path | None, analysed: Sequence[SweptSplit]) -> tuple[Budget | None, str]:
    """Return the budget that the job was given, or that a sweep's selection file holds, and how it was chosen.

    Raises:
        ValueError: a selection of another encoder, or made on queries that are to be analysed.
    """
    if not isinstance(budget, Path):
        return budget, "as given"
    selection, manifest = read_selection(budget), analysed[0].manifest
    if selection.fingerprint != manifest.fingerprint:
        raise ValueError(
            f"{budget} is of encoder {selection.fingerprint} ({selection.retriever}), the sweeps of "
            f"{manifest.fingerprint} ({manifest.retriever}): give a selection of the same retriever"
        )
    place = f"{selection.collection}/{selection.split}"
    if place in {split.name for split in analysed}:
        raise ValueError(f"{budget} was chosen on {place}, which is among --sweeps: choose the budget on other queries")
    return selection.budget, f"best mean {selection.measure} of {selection.mode} on {place}"
