"""Paired tests over queries, as the paper has them, and Holm's correction for several at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtr

ALPHA = 0.05


def paired_p(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Return the p-value of the two-sided paired t-test over queries; 1 where no query differs, or there is but one.

    Args:
        ours: query id → value.
        theirs: the same queries.
    """
    assert ours.keys() == theirs.keys(), "both rows were measured on the same queries"
    differences = np.array([ours[query] - theirs[query] for query in ours])
    n = len(differences)
    if n < 2 or not differences.any():
        return 1.0
    spread = float(differences.std(ddof=1))
    if spread == 0.0:
        return 0.0
    t = float(differences.mean()) / (spread / math.sqrt(n))
    return float(2 * stdtr(n - 1, -abs(t)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method, in the given order."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
