"""Rank correlations with bootstrap intervals: Spearman's rho and Kendall's tau-b (paper §6.3).

Both depend on the table of how often each pair of values occurs, and a resample only changes its counts; so they are
computed from the table, in time linear in its size. That is fast where a side takes few values, as a best budget does.

Legend: N queries, X and Y distinct values of the two sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from diffretriever.statistics.intervals import bootstrap_statistic


@dataclass(frozen=True, slots=True)
class Correlation:
    """A coefficient in -1..1 with its 95% bootstrap interval; all NaN where a side is constant."""

    value: float
    low: float
    high: float


def spearman(x_N: np.ndarray, y_N: np.ndarray) -> Correlation:
    """Return Spearman's rho: the correlation of ranks, equal values sharing their mean rank.

    Args:
        x_N: float64 [N].
        y_N: float64 [N], of few distinct values: the table takes X times Y numbers.
    """
    return _correlation(_rho, x_N, y_N)


def kendall(x_N: np.ndarray, y_N: np.ndarray) -> Correlation:
    """Return Kendall's tau-b: pairs in the same order less pairs in the opposite one, corrected for ties.

    Args:
        x_N: float64 [N].
        y_N: float64 [N], of few distinct values: the table takes X times Y numbers.
    """
    return _correlation(_tau_b, x_N, y_N)


def _correlation(coefficient: Callable[[np.ndarray], float], x_N: np.ndarray, y_N: np.ndarray) -> Correlation:
    x_codes_N = np.unique(x_N, return_inverse=True)[1]
    y_codes_N = np.unique(y_N, return_inverse=True)[1]
    shape = (int(x_codes_N.max()) + 1, int(y_codes_N.max()) + 1)
    of_pairs = partial(_of_pairs, coefficient, shape)
    pairs_N = x_codes_N * shape[1] + y_codes_N
    return Correlation(of_pairs(pairs_N), *bootstrap_statistic(of_pairs, pairs_N))


def _of_pairs(coefficient: Callable[[np.ndarray], float], shape: tuple[int, int], pairs_N: np.ndarray) -> float:
    return coefficient(np.bincount(pairs_N, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64))


def _rho(counts_XY: np.ndarray) -> float:
    x_X, y_Y = _centred_ranks(counts_XY.sum(axis=1)), _centred_ranks(counts_XY.sum(axis=0))
    spread = float(counts_XY.sum(axis=1) @ x_X**2) * float(counts_XY.sum(axis=0) @ y_Y**2)
    return float(x_X @ counts_XY @ y_Y) / math.sqrt(spread) if spread else math.nan


def _centred_ranks(counts: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value, less the mean of all."""
    return np.cumsum(counts) - counts / 2 - counts.sum() / 2


def _tau_b(counts_XY: np.ndarray) -> float:
    n = counts_XY.sum()
    pairs = n * (n - 1) / 2
    untied = [pairs - float((c * (c - 1) / 2).sum()) for c in (counts_XY.sum(axis=1), counts_XY.sum(axis=0))]
    if not all(untied):
        return math.nan
    # Queries before in x: those before in y make pairs of the same order, those after in y of the opposite one.
    before_XY = np.cumsum(counts_XY, axis=0) - counts_XY
    running_XY = np.cumsum(before_XY, axis=1)
    order_XY = (running_XY - before_XY) - (running_XY[:, -1:] - running_XY)
    return float((counts_XY * order_XY).sum()) / math.sqrt(untied[0] * untied[1])
