"""How sure the means of an evaluation are."""

from __future__ import annotations

from collections.abc import Mapping

from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.statistics.intervals import bootstrap_interval

__all__ = ["bootstrap_interval", "intervals_of"]


def intervals_of(results: Mapping[str, EvaluationResult]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the interval of every mean, by label and measure."""
    return {
        label: {measure: bootstrap_interval(values.values()) for measure, values in result.per_query.items()}
        for label, result in results.items()
    }
