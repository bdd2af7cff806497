"""The data of an analysis of budget sweeps, and the base class of the report's sections.

Legend: A query budgets, B passage budgets, Q queries of a set, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from diffretriever.evaluation.measures import official_measure
from diffretriever.presets import read_selection
from diffretriever.schemas.base import Model, suggest
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob
from diffretriever.studies.budgets.oracles import SIDES, Oracle, Side, oracle
from diffretriever.studies.budgets.sweep_files import (
    Outcomes,
    SweptSplit,
    available_features,
    open_splits,
)

MODES: tuple[SweepMode, ...] = ("dense", "sparse", "hybrid")
"""Analysed modes, in the order of tables; `pooled-slots` is a baseline."""

# In place of a set's name: the mean of all sets with equal weight, all queries pooled, the queries of the selection.
AVERAGE, POOLED, SELECTION = "average", "pooled", "selection"


class AnalysisFacts(Model):
    """What was analysed: the head of `report.json` and of the page."""

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


@dataclass(frozen=True)
class AnalysisData:
    """Sweeps of one retriever on several sets of queries."""

    splits: dict[str, SweptSplit]
    """By name, such as `scifact/test`."""
    measure: str
    modes: tuple[SweepMode, ...]
    """Modes that all sweeps have, the main one first, without pooled slots."""
    fixed: Budget
    chosen: str
    """How the fixed budget was chosen, in words."""
    selection: Outcomes | None
    """Outcomes of the main mode on the queries that chose the fixed budget."""
    outcomes: dict[tuple[str, SweepMode], Outcomes]
    feature_names: tuple[str, ...]
    features: dict[str, np.ndarray]
    """Name → float64 [Q, F]."""

    @property
    def names(self) -> list[str]:
        """The sets of queries, in the order given."""
        return list(self.splits)

    @cached_property
    def facts(self) -> AnalysisFacts:
        """The head of the report."""
        manifest = self.splits[self.names[0]].manifest
        return AnalysisFacts(
            retriever=manifest.retriever,
            fingerprint=manifest.fingerprint,
            measure=self.measure,
            fixed=self.fixed,
            chosen=self.chosen,
            query_budgets=manifest.query_budgets,
            passage_budgets=manifest.passage_budgets,
            modes=self.modes,
            queries={name: len(self.outcomes[name, self.modes[0]].queries) for name in self.names},
        )

    @cached_property
    def oracles(self) -> dict[tuple[SweepMode, str, Side], Oracle]:
        """Every oracle against the fixed budget, by mode, set and side."""
        return {
            (mode, name, side): oracle(self.outcomes[name, mode], self.fixed, side)
            for mode in self.modes
            for name in self.names
            for side in SIDES
        }

    @property
    def smallest(self) -> Budget:
        """The smallest cell: the single representation where the sweep begins at 1."""
        return Budget(self.facts.query_budgets[0], self.facts.passage_budgets[0])

    @property
    def has_pooled_slots(self) -> bool:
        """Whether all sweeps scored pooled slots and MaxSim."""
        return all((name, mode) in self.outcomes for name in self.names for mode in ("pooled-slots", "dense"))

    def groups(self) -> list[tuple[str, list[str]]]:
        """Return each set by itself, then their average where there are several: (label, names)."""
        alone = [(name, [name]) for name in self.names]
        return [*alone, (AVERAGE, self.names)] if len(alone) > 1 else alone

    def of_group(self, label: str, mode: SweepMode) -> Outcomes:
        """Return the outcomes of a set, or of the average, with the means of each set as one query."""
        if label != AVERAGE:
            return self.outcomes[label, mode]
        sets = [self.outcomes[name, mode] for name in self.names]
        means_ABQ = np.stack([found.values_ABQ.mean(axis=2) for found in sets], axis=2)
        return Outcomes(tuple(self.names), sets[0].query_budgets, sets[0].passage_budgets, means_ABQ)

    def pooled(self, mode: SweepMode, names: Sequence[str], budget: Budget) -> np.ndarray:
        """Return the values of all queries of these sets, float64: tests of an average pool them, as in the paper."""
        return np.concatenate([self.outcomes[name, mode].at(budget) for name in names])


class Section(Model, ABC):
    """One section of the report: its fields are its numbers, under their names in `report.json`."""

    @classmethod
    @abstractmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Return the numbers; fields are empty where the sweeps lack what they need."""

    def figures(self, data: AnalysisData) -> dict[str, bytes]:
        """Return the PNG files that the page shows, by name."""
        return {}

    @abstractmethod
    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield the section's blocks of Markdown; nothing where its fields are empty."""


def mean_of_means(samples: Sequence[np.ndarray]) -> float:
    """Return the average over sets, each of the same weight; `samples` are float64 [Q], one for each set."""
    return float(np.mean([sample.mean() for sample in samples]))


def read_data(job: AnalyseBudgetsJob) -> AnalysisData:
    """Read the sweeps that the job names; raise `ValueError` if they do not belong together or lack a setting."""
    opened = open_splits([*job.sweeps, *([job.selection] if job.selection is not None else [])])
    analysed = opened[: len(job.sweeps)]
    splits = {split.name: split for split in analysed}
    measures = _measures(job, opened)
    fixed, chosen, selection = _fixed_budget(job, analysed, opened[-1], measures)
    common = [mode for mode in (*MODES, "pooled-slots") if all(mode in split.manifest.modes for split in analysed)]
    outcomes = {
        (name, mode): Outcomes.read(split.folder, split.split, mode, measures[name])
        for name, split in splits.items()
        for mode in dict.fromkeys((job.mode, *common))
    }
    queries = {name: outcomes[name, job.mode].queries for name in splits}
    for name in splits:
        # Fail before anything is computed if the budget was not swept.
        outcomes[name, job.mode].place(fixed)
    feature_names = available_features(analysed)
    return AnalysisData(
        splits=splits,
        measure=_in_words({name: measures[name] for name in splits}),
        modes=(job.mode, *(mode for mode in MODES if mode in common and mode != job.mode)),
        fixed=fixed,
        chosen=chosen,
        selection=selection,
        outcomes=outcomes,
        feature_names=feature_names,
        features={name: split.features(queries[name], feature_names) for name, split in splits.items()},
    )


def _measures(job: AnalyseBudgetsJob, splits: Sequence[SweptSplit]) -> dict[str, str]:
    chosen = dict(_set_and_measure(text) for text in job.measures)
    known = {"", *(split.manifest.collection for split in splits), *(split.name for split in splits)}
    for name in chosen:
        if name not in known:
            raise ValueError(f"--measures: none of the sweeps is of '{name}'.{suggest(name, known)}")
    measures = {}
    for split in splits:
        collection = split.manifest.collection
        default = chosen.get("") or official_measure(collection, split.split)
        measures[split.name] = chosen.get(split.name) or chosen.get(collection) or default
    return measures


def _set_and_measure(text: str) -> tuple[str, str]:
    # A measure may have an `=` within parentheses.
    name, separator, measure = text.partition("=")
    return (name, measure) if separator and "(" not in name else ("", text)


def _in_words(measures: Mapping[str, str]) -> str:
    counts = Counter(measures.values())
    (commonest, _), *rarer = counts.most_common()
    own = [f"{measure} ({', '.join(name for name in measures if measures[name] == measure)})" for measure, _ in rarer]
    return " and ".join([commonest, *own])


def _fixed_budget(
    job: AnalyseBudgetsJob, analysed: Sequence[SweptSplit], last: SweptSplit, measures: Mapping[str, str]
) -> tuple[Budget, str, Outcomes | None]:
    if job.selection is not None:
        measure = measures[last.name]
        selection = Outcomes.read(last.folder, last.split, job.mode, measure)
        return selection.best(), f"best mean {measure} of {job.mode} on {last.name}", selection
    assert job.budget is not None, "the config has checked this"
    if isinstance(job.budget, Path | StorePath):
        return *_selected(job.budget, analysed), None
    return job.budget, "as given", None


def _selected(path: Path | StorePath, analysed: Sequence[SweptSplit]) -> tuple[Budget, str]:
    selection, manifest = read_selection(path), analysed[0].manifest
    if selection.fingerprint != manifest.fingerprint:
        raise ValueError(
            f"{path} is of encoder {selection.fingerprint} ({selection.retriever}), the sweeps of "
            f"{manifest.fingerprint} ({manifest.retriever}): give a selection of the same retriever"
        )
    place = f"{selection.collection}/{selection.split}"
    if place in {split.name for split in analysed}:
        raise ValueError(f"{path} was chosen on {place}, which is among --sweeps: choose the budget on other queries")
    return selection.budget, f"best mean {selection.measure} of {selection.mode} on {place}"
