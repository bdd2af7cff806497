"""Measures of a run against judgements, all computed by ir_measures."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import ir_measures
import numpy as np
from ir_measures.measures import Measure

from diffretriever.scoring.topk import top_k
from schemas.base import suggest
from schemas.evaluate import DEFAULT_MEASURES


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The measures of one run; measures are named as the user wrote them.

    Attributes:
        mean: measure → mean over all queries of the qrels.
        per_query: measure → query id → value.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def parse_measures(names: Iterable[str]) -> list[Measure]:
    """Return the ir_measures measures of these names, such as `nDCG@10`, `MRR@10`, `Recall@100`.

    Raises:
        ValueError: a name that ir_measures does not know or cannot compute; the message suggests a known one.
    """
    return [_parse_measure(name) for name in names]


def evaluate(
    run: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    measures: Sequence[str] = DEFAULT_MEASURES,
) -> EvaluationResult:
    """Measure a run, ranked by the platform's rule: score descending, then passage id ascending.

    Every query of the qrels counts: one that the run lacks, or that has no relevant passage, is 0. Queries
    that only the run has are ignored.

    Args:
        run: query id → passage id → score.
        qrels: query id → passage id → relevance.
        measures: names as in `parse_measures`.

    Raises:
        ValueError: no query in the qrels, a score that is NaN, or a measure that cannot be computed.
    """
    if not qrels:
        raise ValueError("the qrels hold no query: give the qrels of the split that was searched")
    parsed = dict(zip(measures, parse_measures(measures), strict=True))
    ranked = {query: _by_rank(run[query]) for query in qrels if run.get(query)}
    found = {(str(m.measure), m.query_id): float(m.value) for m in _compute(set(parsed.values()), qrels, ranked)}
    per_query = {
        name: {query: found.get((str(measure), query), 0.0) for query in qrels} for name, measure in parsed.items()
    }
    return EvaluationResult({name: float(np.mean([*v.values()])) for name, v in per_query.items()}, per_query)


def remove_self(run: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the run without each query's own passage (same id), as BEIR does."""
    return {query: {i: score for i, score in hits.items() if i != query} for query, hits in run.items()}


def _parse_measure(name: str) -> Measure:
    try:
        measure = ir_measures.parse_measure(name)
        known = ir_measures.DefaultPipeline.supports(measure)
    except (NameError, ValueError, AssertionError, TypeError):
        known = False
    if known:
        return measure
    family = name.partition("@")[0].partition("(")[0]
    names = [*ir_measures.measures.registry, *DEFAULT_MEASURES]
    raise ValueError(f"'{name}' is not a measure that ir_measures can compute.{suggest(family, names)}")


def _by_rank(hits: Mapping[str, float]) -> dict[str, float]:
    """Return scores that only say the rank.

    The providers behind ir_measures break ties differently from each other, and some round scores to fp32.
    """
    ranking = top_k(np.fromiter(hits.values(), dtype=np.float64), list(hits), len(hits))
    return {passage: float(-rank) for rank, (passage, _) in enumerate(ranking)}


def _compute(
    measures: set[Measure], qrels: Mapping[str, Mapping[str, int]], run: Mapping[str, Mapping[str, float]]
) -> list[ir_measures.Metric]:
    try:
        return list(ir_measures.iter_calc(measures, qrels, run))
    except (ArithmeticError, subprocess.CalledProcessError) as error:
        names = ", ".join(sorted(map(str, measures)))
        raise ValueError(f"ir_measures could not compute {names} on this run ({error}): leave some out") from error
