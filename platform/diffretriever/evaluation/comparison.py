"""Compares systems on the same queries: their conditions, means, significant differences and ties.

Legend: Q queries, C pairs of systems.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations

import numpy as np

from diffretriever.collections import Collection, Qrels, Run, open_collection, read_qrels
from diffretriever.core.files import write_text
from diffretriever.evaluation.comparison_page import labelled, write_comparison
from diffretriever.evaluation.conditions import conditions_of_run, warnings_of
from diffretriever.evaluation.evaluate import refuse_warnings, search_collection
from diffretriever.evaluation.exclusion import settled_by_runs
from diffretriever.evaluation.fused import FinishedRuns, read_runs
from diffretriever.evaluation.measures import EvaluationResult, evaluate, measures_of, overlap_of, parse_measures
from diffretriever.evaluation.report import intervals_of
from diffretriever.evaluation.statistics import (
    ALPHA,
    bootstrap_interval,
    detectable_difference,
    holm,
    randomisation_p_each,
    t_test_p,
)
from diffretriever.evaluation.ties import tie_ranges
from diffretriever.schemas.evaluate import CompareJob, ComparisonReport, Conditions, Difference, EvaluateJob, Test
from diffretriever.schemas.fusion import named_runs
from diffretriever.search import open_searcher

_MOST = len(string.ascii_lowercase)


def compare_runs(job: CompareJob, command: str) -> ComparisonReport:
    """Measure the runs and indexes of a compare job, write its files, and return the content of `comparison.json`.

    Raises:
        ValueError: Malformed run or qrels, unknown index, collection, split or measure, a run that lacks queries, runs
            without a common passage, or a warning if the job is strict. Nothing has been written then.
    """
    collection = None if job.collection is None else open_collection(job.collection)
    name = None if collection is None else collection.name
    measures = job.measures or measures_of(name, job.split)
    parse_measures(measures)
    if job.qrels is not None:
        qrels: Qrels = read_qrels(job.qrels)
    else:
        assert collection is not None, "the config has checked this"
        qrels = collection.qrels(job.split)
    paths = named_runs(job.runs, "--runs")
    finished = read_runs(paths)
    searched = _Searched() if collection is None else _searched(job, collection)
    # Self-exclusion applies to all systems, whichever of them shows that queries are passages.
    settled = job.model_copy(update={"exclude_self": True}) if searched.notes else job
    settled, finished, notes = settled_by_runs(settled, finished | searched.runs, qrels)
    runs = FinishedRuns.of(finished, qrels)
    measured = {name: runs.single(name) for name in runs.names}
    conditions = {}
    for name, run in measured.items():
        overlap = overlap_of(run, qrels)
        known = searched.conditions.get(name) or conditions_of_run(paths[name], overlap)
        conditions[name] = known.model_copy(update={"overlap": overlap, "excludes_self": settled.drops_self})
    measured.update({f"fused by {by}": run for by, run in runs.fused_alike(job.fusions, measures).items()})
    systems = {name: {name: evaluate(run, qrels, measures)} for name, run in measured.items()}
    ties = {name: tie_ranges(run, qrels, systems[name][name], measures) for name, run in measured.items()}
    title = " and ".join([", ".join(runs.names[:-1]), runs.names[-1]])
    report = compared(
        title if collection is None else f"{title} on {collection.name} ({job.split})",
        systems,
        command,
        job.test,
        conditions=conditions,
        ties={name: ranges for name, ranges in ties.items() if ranges},
        notes=searched.notes or notes,
    )
    refuse_warnings(job, report.warnings)
    write_comparison(job.output, report, systems)
    write_text(job.output / "compare.yaml", job.to_yaml())
    return report


@dataclass
class _Searched:
    """Search results of a job's indexes. Names have the mode if the index has several."""

    runs: dict[str, Run] = field(default_factory=dict)
    conditions: dict[str, Conditions] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """A sentence, if most queries are passages of an index."""


def _searched(job: CompareJob, collection: Collection) -> _Searched:
    results = _Searched()
    for name, path in job.named_indexes.items():
        evaluation = EvaluateJob(
            index=str(path),
            collection=job.collection,
            split=job.split,
            output=job.output,
            exclude_self=job.exclude_self,
            documents=job.documents,
        )
        searched = search_collection(open_searcher(evaluation.index, evaluation.search_options), collection, evaluation)
        results.notes = results.notes or searched.notes
        for mode, run in searched.runs.items():
            row = f"{name} {mode}" if len(searched.runs) > 1 else name
            results.runs[row], results.conditions[row] = run, searched.conditions[mode]
    return results


def compared(
    title: str,
    systems: Mapping[str, Mapping[str, EvaluationResult]],
    command: str,
    test: Test = "t-test",
    conditions: Mapping[str, Conditions] | None = None,
    ties: Mapping[str, dict[str, tuple[float, float, float]]] | None = None,
    notes: Sequence[str] = (),
) -> ComparisonReport:
    """Return means, intervals, differences and warnings of 1 to 26 systems.

    `systems` has results by system and mode; `conditions` and `ties` are by row (see `labelled`).

    Raises:
        ValueError: The systems have different queries or measures, or there are too many.
    """
    rows = labelled(systems)
    _check_comparable(rows)
    first = next(iter(rows.values()))
    queries, conditions = len(next(iter(first.per_query.values()))), dict(conditions or {})
    differences = differences_of(rows, test)
    return ComparisonReport(
        title=title,
        measures={system: {mode: r.mean for mode, r in modes.items()} for system, modes in systems.items()},
        intervals={system: intervals_of(modes) for system, modes in systems.items()},
        better_than={measure: better_than(list(rows), pairs) for measure, pairs in differences.items()},
        differences=differences,
        test=test,
        queries=queries,
        ties=None if ties is None else dict(ties),
        conditions=conditions,
        warnings=tuple(warnings_of(conditions, queries)),
        notes=tuple(notes),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )


def differences_of(rows: Mapping[str, EvaluationResult], test: Test) -> dict[str, list[Difference]]:
    """Return measure → the difference of each pair of systems, largest first.

    Tests are two-sided and paired, with Holm's correction over the pairs of a measure.
    """
    differences: dict[str, list[Difference]] = {}
    pairs = list(combinations(rows, 2))
    for measure in next(iter(rows.values())).mean if pairs else ():
        queries = next(iter(rows.values())).per_query[measure]
        values = {label: np.array([row.per_query[measure][query] for query in queries]) for label, row in rows.items()}
        differences_CQ = np.stack([values[one] - values[other] for one, other in pairs])
        p_values = [*map(t_test_p, differences_CQ)] if test == "t-test" else randomisation_p_each(differences_CQ)
        corrected = zip(pairs, differences_CQ, holm(p_values), strict=True)
        tested = [_difference(pair, differences_Q, p) for pair, differences_Q, p in corrected]
        differences[measure] = sorted(tested, key=lambda difference: -difference.mean)
    return differences


def _difference(pair: tuple[str, str], differences_Q: np.ndarray, p: float) -> Difference:
    if differences_Q.mean() < 0:
        pair, differences_Q = (pair[1], pair[0]), -differences_Q
    return Difference(
        system=pair[0],
        other=pair[1],
        mean=float(differences_Q.mean()),
        interval=bootstrap_interval(differences_Q),
        p=p,
        detectable=detectable_difference(differences_Q),
    )


def better_than(systems: Sequence[str], differences: Sequence[Difference]) -> dict[str, list[str]]:
    """Return the systems that each is significantly better than, in the order of `systems`."""
    significant = {(pair.system, pair.other) for pair in differences if pair.p < ALPHA}
    return {one: [other for other in systems if (one, other) in significant] for one in systems}


def _check_comparable(rows: Mapping[str, EvaluationResult]) -> None:
    if len(rows) > _MOST:
        raise ValueError(f"{len(rows)} systems are too many for one table: compare at most {_MOST}")
    first = next(iter(rows))
    for label, row in rows.items():
        if list(row.mean) != list(rows[first].mean):
            raise ValueError(f"'{label}' and '{first}' have different measures: evaluate both with the same ones")
        measure = next(iter(row.mean))
        if row.per_query[measure].keys() != rows[first].per_query[measure].keys():
            raise ValueError(f"'{label}' and '{first}' have different queries: evaluate both with the same qrels")
