"""Runs of other systems, measured on the queries of sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from diffretriever.collections import Qrels, open_collection, read_qrels, read_run
from diffretriever.evaluation.budgets.sweeps import (
    Outcomes,
    SweptSplit,
    available_features,
    open_splits,
    query_features,
)
from diffretriever.evaluation.measures import evaluate, remove_self
from schemas.analyse import (
    AnalyseBudgetsJob,
    runs_by_name,
)
from schemas.budget import Budget
from schemas.sweep import SweepMode, read_selection

_SWEEP_JOB = "sweep.yaml"


def read_others(
    job: AnalyseBudgetsJob, splits: Mapping[str, SweptSplit], queries: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], np.ndarray]:
    """Return the values of every other system, float64 [Q], by its name and the set's; runs are treated as the sweep's.

    Args:
        job: names the runs, and perhaps the judgements.
        splits: by name, in the order of the job's sweeps.
        queries: ids by the set's name.

    Raises:
        ValueError: a run or judgements that are not there or malformed, or judgements of other queries.
    """
    runs = runs_by_name(job.against, len(splits))
    if not runs:
        return {}
    found: dict[tuple[str, str], np.ndarray] = {}
    for place, (name, split) in enumerate(splits.items()):
        qrels = read_qrels(job.qrels[place]) if job.qrels else swept_qrels(split)
        if set(qrels) != set(queries[name]):
            raise ValueError(f"the judgements of {name} are not of the queries that were swept: give --qrels")
        for system, paths in runs.items():
            run = read_run(paths[place])
            if excludes_self(split):
                run = remove_self(run)
            values = evaluate(run, qrels, [job.measure]).per_query[job.measure]
            found[system, name] = np.array([values[query] for query in queries[name]])
    return found


def swept_qrels(split: SweptSplit, collection: str | None = None) -> Qrels:
    """Return the judgements of a split, from `collection` or else the one that its sweep was made of.

    Raises:
        ValueError: it is no longer where the sweep found it.
    """
    source = collection or _settings(split).get("collection")
    if source is None:
        raise ValueError(f"{split.folder / _SWEEP_JOB} does not name the collection: give the judgements by themselves")
    try:
        return open_collection(source).qrels(split.split)
    except ValueError as error:
        raise ValueError(f"{split.folder} was swept on {source}, which cannot be opened from here: {error}") from error


def excludes_self(split: SweptSplit) -> bool:
    """Return whether the sweep left a query's own document out of its runs."""
    return bool(_settings(split).get("exclude_self", True))


def _settings(split: SweptSplit) -> dict[str, Any]:
    path: Path = split.folder / _SWEEP_JOB
    return dict(yaml.safe_load(path.read_text("utf-8"))) if path.is_file() else {}


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


AVERAGE = "average"


POOLED = "pooled"


SELECTION = "selection"


def averaged(data: AnalysisData, mode: SweepMode) -> Outcomes:
    """Return outcomes with a made-up query for each set, which has the set's means: their mean is the average."""
    sets = [data.outcomes[name, mode] for name in data.names]
    means_ABQ = np.stack([found.values_ABQ.mean(axis=2) for found in sets], axis=2)
    return Outcomes(tuple(data.names), sets[0].query_budgets, sets[0].passage_budgets, means_ABQ)


_Group: TypeAlias = tuple[str, list[str]]


def groups(data: AnalysisData) -> list[_Group]:
    """Return each set by itself, and then their average where there are several: (label, names)."""
    alone = [(name, [name]) for name in data.names]
    return [*alone, (AVERAGE, data.names)] if len(alone) > 1 else alone


def smallest(data: AnalysisData) -> Budget:
    """Return the smallest cell: the single representation where the sweep begins at 1."""
    found = data.outcomes[data.names[0], data.modes[0]]
    return Budget(found.query_budgets[0], found.passage_budgets[0])


def _pooled(data: AnalysisData, mode: SweepMode, names: list[str], budget: Budget) -> np.ndarray:
    """Return the values of all queries of these sets: an average's test pools them, as the paper's does."""
    return np.concatenate([data.outcomes[name, mode].at(budget) for name in names])
