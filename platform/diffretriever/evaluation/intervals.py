"""How sure a mean over queries is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from diffretriever.evaluation.measures import EvaluationResult

_RESAMPLES = 1000
_SEED = 42


def bootstrap_interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the mean, from 1000 resamples with a fixed seed.

    Args:
        values: one per query, at least one.
    """
    sample = np.fromiter(values, dtype=np.float64)
    assert len(sample), "an interval needs a value"
    generator = np.random.default_rng(_SEED)
    means = [sample[generator.integers(len(sample), size=len(sample))].mean() for _ in range(_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def intervals_of(results: Mapping[str, EvaluationResult]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the interval of every mean, by label and measure."""
    return {
        label: {measure: bootstrap_interval(values.values()) for measure, values in result.per_query.items()}
        for label, result in results.items()
    }
