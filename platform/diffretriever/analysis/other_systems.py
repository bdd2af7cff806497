"""Runs of other systems, measured on the queries of sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from diffretriever.budgets.splits import SweptSplit
from diffretriever.collections import Qrels, open_collection, read_qrels, read_run
from diffretriever.evaluation.measures import evaluate, remove_self
from schemas.against import runs_by_name
from schemas.analyse import AnalyseBudgetsJob

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
