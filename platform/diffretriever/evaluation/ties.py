"""The effect of ties: measures over all orders of passages with equal scores.

Rankings break ties by passage id, which is arbitrary. Reports show the lowest, expected and highest mean instead of one
number where ties matter.

Legend: F hits of all queries, G groups of tied hits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffretriever.collections import Qrels, Run
from diffretriever.evaluation.measures import EvaluationResult, evaluate
from diffretriever.vectors.hits import Hits

_SEED = 42
_ORDERS = 20
"""Random orders, whose mean estimates the expected value."""


def tie_ranges(
    run: Run, qrels: Qrels, measured: EvaluationResult, measures: Sequence[str]
) -> dict[str, tuple[float, float, float]]:
    """Return measure → lowest, expected and highest mean over orders of tied passages, if the order changes it.

    `measured` are the run's measures. The expected value is the mean over 20 random orders.
    """
    run = run.of_queries(list(qrels))
    grades_F, groups_F = _grades(run, qrels), _groups(run.hits)
    affected = _affected(run, grades_F, groups_F)
    if not affected:
        return {}
    generator = np.random.default_rng(_SEED)
    keys = [grades_F, -grades_F, *(generator.random(len(groups_F)) for _ in range(_ORDERS))]
    judged = {query: qrels[query] for query in affected}
    lowest, highest, *drawn = [evaluate(_reordered(run, groups_F, key_F), judged, measures) for key_F in keys]
    ranges = {}
    for measure, values in measured.per_query.items():
        rest = sum(value for query, value in values.items() if query not in judged)
        low, high, *others = [
            (rest + sum(one.per_query[measure].values())) / len(values) * measured.scale(measure)
            for one in (lowest, highest, *drawn)
        ]
        if low < high:
            ranges[measure] = low, float(np.mean(others)), high
    return ranges


def _grades(run: Run, qrels: Qrels) -> np.ndarray:
    """Return int64 [F], the grade of each hit for its query; 0 if it is not judged."""
    hits, grades_F = run.hits, np.zeros(len(run.hits.numbers_F), np.int64)
    judged = sorted({passage for grades in qrels.values() for passage in grades})
    numbers = dict(zip(judged, hits.passages.numbers_of(judged).tolist(), strict=True))
    for query, start, end in zip(run.query_ids, hits.offsets[:-1], hits.offsets[1:], strict=True):
        for passage, grade in qrels[query].items():
            grades_F[start:end][hits.numbers_F[start:end] == numbers[passage]] = max(grade, 0)
    return grades_F


def _groups(hits: Hits) -> np.ndarray:
    """Return int64 [F], ascending: hits of a query with equal scores have equal numbers."""
    queries_F, scores_F = hits.queries(), hits.scores_F
    starts_F = np.ones(len(scores_F), bool)
    starts_F[1:] = (scores_F[1:] != scores_F[:-1]) | (queries_F[1:] != queries_F[:-1])
    groups_F: np.ndarray = np.cumsum(starts_F)
    return groups_F


def _affected(run: Run, grades_F: np.ndarray, groups_F: np.ndarray) -> list[str]:
    """Return the queries with passages of different grades in one group."""
    mixed_F = (groups_F[1:] == groups_F[:-1]) & (grades_F[1:] != grades_F[:-1])
    queries = np.unique(run.hits.queries()[1:][mixed_F])
    return [run.query_ids[query] for query in queries]


def _reordered(run: Run, groups_F: np.ndarray, key_F: np.ndarray) -> Run:
    hits, order_F = run.hits, np.lexsort((key_F, groups_F))
    return Run(run.query_ids, Hits(hits.passages, hits.offsets, hits.numbers_F[order_F], hits.scores_F[order_F]))
