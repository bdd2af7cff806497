"""How sure a figure over queries is: percentile bootstrap intervals with a fixed seed.

Legend: N queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

RESAMPLES = 1000
SEED = 42


def bootstrap_interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the mean, from 1000 resamples with a fixed seed.

    Args:
        values: one per query, at least one.
    """
    return bootstrap_statistic(lambda sample: float(sample.mean()), np.fromiter(values, dtype=np.float64))


def bootstrap_statistic(statistic: Callable[..., float], *samples: np.ndarray) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of any statistic of paired samples.

    A query is drawn with all its values. Resamples on which the statistic is not defined (NaN), such as a ratio by a
    sum of 0, are left out.

    Args:
        statistic: of as many arrays as there are samples; called 1000 times.
        samples: float64 [N] each, N at least 1.
    """
    n = len(samples[0])
    assert n, "an interval needs a value"
    assert all(len(sample) == n for sample in samples), "paired samples are of the same queries"
    generator = np.random.default_rng(SEED)
    found = np.empty(RESAMPLES)
    for resample in range(RESAMPLES):
        drawn_N = generator.integers(n, size=n)
        found[resample] = statistic(*(sample[drawn_N] for sample in samples))
    return _central(found)


def bootstrap_average(samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the 95% interval of an average over data sets, each of the same weight: each is resampled by itself.

    Args:
        samples: float64 [N] for each data set, N its own.
    """
    generator = np.random.default_rng(SEED)
    found = np.zeros(RESAMPLES)
    for resample in range(RESAMPLES):
        found[resample] = sum(s[generator.integers(len(s), size=len(s))].mean() for s in samples) / len(samples)
    return _central(found)


def _central(found: np.ndarray) -> tuple[float, float]:
    defined = found[~np.isnan(found)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)
