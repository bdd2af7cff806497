"""Finished runs of several retrievers, fused: read, checked, weighted, and tested against the best of them.

Legend: Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Self

import numpy as np

from diffretriever.collections import Qrels, Run, read_run
from diffretriever.evaluation.formats.tables import NOTHING, Cell, format_table, markdown_table, p_value, with_interval
from diffretriever.evaluation.measures import EvaluationResult, deepest_rank, evaluate
from diffretriever.evaluation.statistics import ALPHA, bootstrap_interval, holm, t_test_p
from diffretriever.progress import track
from diffretriever.schemas.fusion import FusedRun, Fusion, FusionReport
from diffretriever.schemas.places import StorePath
from diffretriever.scoring.fusion import FUSION_DEPTH, fused
from diffretriever.scoring.hits import Hits

FUSION_FILE = "fusion.json"

_STEPS = 10
"""Of a weight, from 0 to 1, where weights are tuned."""
_NAMED = 3
"""Queries that a message names."""


def read_runs(places: Mapping[str, Path | StorePath]) -> dict[str, Run]:
    """Read runs by name; raises as `read_run` does."""
    return {name: read_run(place) for name, place in track(places.items(), "reading runs", "runs")}


@dataclass(frozen=True, slots=True)
class FinishedRuns:
    """Runs of several retrievers over the same queries.

    Attributes:
        names: of the runs, none twice.
        query_ids: of Q queries.
        lists: for each run the hits of these queries; passages have the same numbers in all of them.
    """

    names: tuple[str, ...]
    query_ids: list[str]
    lists: tuple[Hits, ...]

    @classmethod
    def of(cls, runs: Mapping[str, Run], qrels: Qrels, *, allow_missing: bool = False) -> Self:
        """Return what these runs have for the queries of the qrels.

        Args:
            runs: by name, at least one.
            qrels: whose queries count.
            allow_missing: take a query that a run lacks, though another has it, as one that it found nothing for.

        Raises:
            ValueError: a run has none of the queries, lacks some, or has no passage in common with another.
        """
        _check_queries({name: set(run.query_ids) for name, run in runs.items()}, qrels, allow_missing=allow_missing)
        query_ids = list(qrels)
        lists = Hits.numbered_alike([run.of_queries(query_ids).hits for run in runs.values()])
        _check_passages(dict(zip(runs, lists, strict=True)))
        return cls(tuple(runs), query_ids, tuple(lists))

    def single(self, name: str) -> Run:
        """Return one of the runs."""
        return Run(self.query_ids, self.lists[self.names.index(name)])

    def ranges(self, depth: int) -> list[float]:
        """Return of each run the mean over queries of its best score less its worst among the `depth` best; above 0."""
        found: list[float] = []
        for hits in self.lists:
            cut = hits.first(depth)
            is_filled_Q = np.diff(cut.offsets) > 0
            best_Q, worst_Q = (
                cut.scores_F[cut.offsets[:-1][is_filled_Q]],
                cut.scores_F[cut.offsets[1:][is_filled_Q] - 1],
            )
            found.append(float(np.mean(best_Q - worst_Q)) if len(best_Q) else 0.0)
        return [spread or 1.0 for spread in found]

    def fused_alike(self, fusions: Sequence[Fusion], measures: Sequence[str]) -> dict[Fusion, Run]:
        """Return all runs fused with equal weights, by each way to fuse, as deep as the measures look."""
        weights, depth = Weights.given(self.names).by_run, deepest_rank(measures) or FUSION_DEPTH
        return {by: self.fused(by, weights, depth) for by in dict.fromkeys(fusions)}

    def fused(self, by: Fusion, weights: Mapping[str, float], k: int) -> Run:
        """Return the `k` best passages of each query by the weighted sum over all runs."""
        return Run(self.query_ids, fused(self.lists, k, by=by, weights=[weights[name] for name in self.names]))


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of runs in one way to fuse.

    Attributes:
        by_run: their sum is 1.
        tuned: mean on the queries that they were chosen on; None where they were given.
    """

    by_run: dict[str, float]
    tuned: float | None = None

    @classmethod
    def given(cls, names: Sequence[str], weights: Sequence[float] = ()) -> Self:
        """Return weights by their share of the sum; none given are equal ones."""
        values = list(weights) or [1.0] * len(names)
        return cls({name: value / sum(values) for name, value in zip(names, values, strict=True)})

    @classmethod
    def tuned_on(cls, runs: FinishedRuns, qrels: Qrels, by: Fusion, measure: str) -> Self:
        """Return the best weights among all in steps of .1; of several, those that are most alike.

        Those of `linear` are what the steps make of the runs' usual ranges of scores, which may differ a hundredfold.

        Args:
            runs: of queries that are not reported.
            qrels: of the same queries.
            by: the way to fuse.
            measure: that is best.

        Raises:
            ValueError: as `evaluate` does.
        """
        depth = deepest_rank([measure]) or FUSION_DEPTH
        units = runs.ranges(depth) if by == "linear" else [1.0] * len(runs.names)
        means: dict[tuple[int, ...], float] = {}
        tried: dict[tuple[int, ...], dict[str, float]] = {}
        for point in track(_simplex(len(runs.names)), f"tuning {by}", "weights"):
            shares = [share / unit for share, unit in zip(point, units, strict=True)]
            tried[point] = cls.given(runs.names, shares).by_run
            means[point] = evaluate(runs.fused(by, tried[point], depth), qrels, (measure,)).mean[measure]
        best = max(means, key=lambda point: (means[point], -sum(share * share for share in point)))
        return cls(tried[best], means[best])


def check_disjoint(reported: Qrels, tuned: Qrels) -> None:
    """Raise `ValueError` where weights would be tuned on a query that is reported."""
    common = [query for query in tuned if query in reported]
    if common:
        raise ValueError(
            f"{len(common):,} queries that weights are to be tuned on are reported too ({_some(common)}): tune on the "
            "queries of another split"
        )


def compare(
    results: Mapping[str, EvaluationResult], weights: Mapping[Fusion, Weights], names: Sequence[str]
) -> tuple[str, tuple[FusedRun, ...]]:
    """Test each fused run against the single run with the best mean of the first measure.

    Args:
        results: of all runs, the fused ones by the way to fuse.
        weights: of the fused runs.
        names: of the single runs.

    Returns:
        The name of the best single run, and the fused runs.
    """
    measure = next(iter(results[names[0]].mean))
    best = max(names, key=lambda name: results[name].mean[measure])
    values = {name: np.array([*results[name].per_query[measure].values()]) for name in [best, *weights]}
    differences = {by: (values[by] - values[best]) * results[best].scale(measure) for by in weights}
    p_values = [t_test_p(differences_Q) for differences_Q in differences.values()]
    rows = (
        FusedRun(
            fusion=by,
            weights=own.by_run,
            tuned=own.tuned,
            mean=results[by].mean[measure],
            difference=float(differences[by].mean()),
            interval=bootstrap_interval(differences[by]),
            t_test=p,
            t_test_holm=corrected,
        )
        for (by, own), p, corrected in zip(weights.items(), p_values, holm(p_values), strict=True)
    )
    return best, tuple(rows)


def fusion_table(report: FusionReport, results: Mapping[str, EvaluationResult]) -> str:
    """Return the means of single and fused runs, and what fusing gives, as plain text for the terminal."""
    return f"{format_table(_rows(report, results), _columns(report, results))}\n\n{_note(report)}"


def fusion_section(report: FusionReport, results: Mapping[str, EvaluationResult]) -> str:
    """Return the same as a section of a page in Markdown."""
    table = markdown_table(_rows(report, results), _columns(report, results))
    return f"\n## What fusing gives\n\n{table}\n\n{_note(report)}\n"


def _columns(report: FusionReport, results: Mapping[str, EvaluationResult]) -> list[str]:
    return ["run", "weights", *next(iter(results.values())).mean, f"less {report.best}", "p"]


def _rows(report: FusionReport, results: Mapping[str, EvaluationResult]) -> list[list[Cell]]:
    tested: dict[str, FusedRun] = {each.fusion: each for each in report.fused}
    rows: list[list[Cell]] = []
    for name, result in results.items():
        own = tested.get(name)
        if own is None:
            rows.append([name, NOTHING, *result.mean.values(), NOTHING, NOTHING])
            continue
        dagger = "†" if own.t_test_holm < ALPHA else ""
        weights = ", ".join(f"{run} {weight:.3g}" for run, weight in own.weights.items())
        difference = f"{with_interval(own.difference, own.interval)}{dagger}"
        rows.append([name, weights, *result.mean.values(), difference, p_value(own.t_test_holm)])
    return rows


def _note(report: FusionReport) -> str:
    tuned = (
        ""
        if report.tuned_by is None
        else f" Weights have the best {report.tuned_by} on {report.tuned_on}, in steps of {1 / _STEPS:g}."
    )
    return (
        f"Differences are of {report.measure}, with bootstrap 95% intervals. †: p < .05, paired two-sided t-test, "
        f"corrected by Holm for all rows that are tested.{tuned}"
    )


def _check_queries(found: Mapping[str, set[str]], qrels: Qrels, *, allow_missing: bool) -> None:
    everywhere = set.union(*found.values())
    for name, own in found.items():
        if not own & qrels.keys():
            raise ValueError(f"{name} has no query of the qrels: give its run of the same collection and split")
        missing = [query for query in qrels if query in everywhere and query not in own]
        if missing and not allow_missing:
            raise ValueError(
                f"{name} lacks {len(missing):,} of {len(qrels):,} queries, which another run has ({_some(missing)}): "
                "give its whole run or, if it has found nothing for them, --allow-missing"
            )


def _check_passages(lists: Mapping[str, Hits]) -> None:
    found = {name: np.unique(hits.numbers_F) for name, hits in lists.items()}
    for one, other in combinations(found, 2):
        if not len(np.intersect1d(found[one], found[other], assume_unique=True)):
            raise ValueError(f"{one} and {other} have no passage in common: give runs over the same collection")


def _some(queries: Sequence[str]) -> str:
    return f"{', '.join(queries[:_NAMED])}{', …' if len(queries) > _NAMED else ''}"


def _simplex(n_runs: int) -> list[tuple[int, ...]]:
    """Return all ways to share `_STEPS` among the runs."""
    bars = combinations(range(_STEPS + n_runs - 1), n_runs - 1)
    ends = ((-1, *each, _STEPS + n_runs - 1) for each in bars)
    return [tuple(right - left - 1 for left, right in pairwise(each)) for each in ends]
