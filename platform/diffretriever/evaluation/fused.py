"""Fuses finished runs of several retrievers, and tunes the weights.

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
from diffretriever.core.progress import track
from diffretriever.evaluation.measures import deepest_rank, evaluate, parse_measures
from diffretriever.schemas.fusion import Fusion
from diffretriever.schemas.locations import StorePath
from diffretriever.vectors.fusion import FUSION_DEPTH, fused
from diffretriever.vectors.hits import Hits

_STEPS = 10
"""Steps of a tuned weight from 0 to 1."""
_NAMED = 3
"""Queries that a message names."""


def read_runs(paths: Mapping[str, Path | StorePath]) -> dict[str, Run]:
    """Read runs by name; raises as `read_run` does."""
    return {name: read_run(path) for name, path in track(paths.items(), "reading runs", "runs")}


@dataclass(frozen=True, slots=True)
class FinishedRuns:
    """Runs of several retrievers over the same queries.

    Attributes:
        names: unique names of the runs.
        query_ids: of Q queries.
        lists: hits by run; passage numbers are shared by all runs.
    """

    names: tuple[str, ...]
    query_ids: list[str]
    lists: tuple[Hits, ...]

    @classmethod
    def of(cls, runs: Mapping[str, Run], qrels: Qrels) -> Self:
        """Return the runs' hits for the queries of the qrels; a run may lack some queries.

        Raises:
            ValueError: A run has none of the queries, or no passage in common with another.
        """
        for name, run in runs.items():
            if not qrels.keys() & set(run.query_ids):
                raise ValueError(f"{name} has no query of the qrels: give its run of the same collection and split")
        query_ids = list(qrels)
        lists = Hits.numbered_alike([run.of_queries(query_ids).hits for run in runs.values()])
        _check_passages(dict(zip(runs, lists, strict=True)))
        return cls(tuple(runs), query_ids, tuple(lists))

    def single(self, name: str) -> Run:
        """Return one of the runs."""
        return Run(self.query_ids, self.lists[self.names.index(name)])

    def ranges(self, depth: int) -> list[float]:
        """Return the mean score range over queries of each run's `depth` best passages; above 0."""
        ranges: list[float] = []
        for hits in self.lists:
            cut = hits.first(depth)
            is_filled_Q = np.diff(cut.offsets) > 0
            best_Q = cut.scores_F[cut.offsets[:-1][is_filled_Q]]
            worst_Q = cut.scores_F[cut.offsets[1:][is_filled_Q] - 1]
            ranges.append(float(np.mean(best_Q - worst_Q)) if len(best_Q) else 0.0)
        return [spread or 1.0 for spread in ranges]

    def fused_alike(self, fusions: Sequence[Fusion], measures: Sequence[str]) -> dict[Fusion, Run]:
        """Fuse all runs with equal weights by each fusion method, as deep as the measures need."""
        weights, depth = shares(self.names), deepest_rank(parse_measures(measures)) or FUSION_DEPTH
        return {by: self.fused(by, weights, depth) for by in dict.fromkeys(fusions)}

    def fused(self, by: Fusion, weights: Mapping[str, float], k: int) -> Run:
        """Return the `k` best passages of each query by the weighted sum over all runs."""
        return Run(self.query_ids, fused(self.lists, k, by=by, weights=[weights[name] for name in self.names]))

    def tuned(self, qrels: Qrels, by: Fusion, measure: str) -> dict[str, float]:
        """Return the best weights on a grid with step .1; ties prefer the most equal weights.

        Weights of `linear` are scaled by the inverse of the runs' score ranges.

        Raises:
            ValueError: As `evaluate` does.
        """
        depth = deepest_rank(parse_measures([measure])) or FUSION_DEPTH
        units = self.ranges(depth) if by == "linear" else [1.0] * len(self.names)
        means: dict[tuple[int, ...], float] = {}
        tried: dict[tuple[int, ...], dict[str, float]] = {}
        for point in track(_simplex(len(self.names)), f"tuning {by}", "weights"):
            tried[point] = shares(self.names, [share / unit for share, unit in zip(point, units, strict=True)])
            means[point] = evaluate(self.fused(by, tried[point], depth), qrels, (measure,)).mean[measure]
        return tried[max(means, key=lambda point: (means[point], -sum(share * share for share in point)))]


def shares(names: Sequence[str], weights: Sequence[float] = ()) -> dict[str, float]:
    """Return each run's weight as a share of their sum (default: equal weights)."""
    values = list(weights) or [1.0] * len(names)
    return {name: value / sum(values) for name, value in zip(names, values, strict=True)}


def check_disjoint(reported: Qrels, tuned: Qrels) -> None:
    """Raise `ValueError` if a reported query would be used for tuning."""
    common = [query for query in tuned if query in reported]
    if common:
        named = f"{', '.join(common[:_NAMED])}{', …' if len(common) > _NAMED else ''}"
        raise ValueError(
            f"{len(common):,} queries that weights are to be tuned on are reported too ({named}): tune on the queries "
            "of another split"
        )


def _check_passages(lists: Mapping[str, Hits]) -> None:
    numbers = {name: np.unique(hits.numbers_F) for name, hits in lists.items()}
    for one, other in combinations(numbers, 2):
        if not len(np.intersect1d(numbers[one], numbers[other], assume_unique=True)):
            raise ValueError(f"{one} and {other} have no passage in common: give runs over the same collection")


def _simplex(n_runs: int) -> list[tuple[int, ...]]:
    """Return all ways to share `_STEPS` among the runs."""
    bars = combinations(range(_STEPS + n_runs - 1), n_runs - 1)
    ends = ((-1, *each, _STEPS + n_runs - 1) for each in bars)
    return [tuple(right - left - 1 for left, right in pairwise(each)) for each in ends]
