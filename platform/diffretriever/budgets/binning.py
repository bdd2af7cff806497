"""Means of one number in bins of another, for plots.

Legend: N queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffretriever.statistics.intervals import bootstrap_interval


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries whose feature lies in one range.

    Attributes:
        n: how many.
        feature: their mean feature.
        mean: their mean value.
        interval: bootstrap 95% interval of that mean.
    """

    n: int
    feature: float
    mean: float
    interval: tuple[float, float]


def binned_means(features_N: np.ndarray, values_N: np.ndarray, most: int = 8) -> list[Bin]:
    """Return means of the values in at most `most` bins of about as many queries each, by rising feature.

    Equal features fall into one bin, so that there are fewer bins where a feature takes few values.

    Args:
        features_N: float64 [N], N at least 1.
        values_N: float64 [N].
        most: at least 1.
    """
    edges = np.unique(np.quantile(features_N, np.arange(1, most) / most))
    places_N = np.searchsorted(edges, features_N, side="left")
    members = [np.flatnonzero(places_N == place) for place in np.unique(places_N)]
    return [
        Bin(len(m), float(features_N[m].mean()), float(values_N[m].mean()), bootstrap_interval(values_N[m]))
        for m in members
    ]
