"""Paired tests over queries, as the paper has them, and Holm's correction for several at once.

Legend: C comparisons, N queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtr

ALPHA = 0.05
_MOST_TRIED = 13
_SIGN_FLIPS = 10_000
_FLIPS_AT_ONCE = 2_000_000
_SEED = 42


def paired_p(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Return the p-value of the two-sided paired t-test over queries; 1 where no query differs, or there is but one.

    Args:
        ours: query id → value.
        theirs: the same queries.
    """
    assert ours.keys() == theirs.keys(), "both rows were measured on the same queries"
    return t_test_p(np.array([ours[query] - theirs[query] for query in ours]))


def t_test_p(differences_N: np.ndarray) -> float:
    """Return the p-value of the two-sided paired t-test; 1 where no query differs, or there is but one.

    Args:
        differences_N: float64 [N], ours less theirs.
    """
    n = len(differences_N)
    if n < 2 or not differences_N.any():
        return 1.0
    spread = float(differences_N.std(ddof=1))
    if spread == 0.0:
        return 0.0
    t = float(differences_N.mean()) / (spread / math.sqrt(n))
    return float(2 * stdtr(n - 1, -abs(t)))


def randomisation_p(differences_N: np.ndarray) -> float:
    """Return the p-value of the two-sided paired randomisation test of the mean; see `randomisation_p_each`."""
    return randomisation_p_each(differences_N[None])[0]


def randomisation_p_each(differences_CN: np.ndarray) -> list[float]:
    """Return the p-values of two-sided paired randomisation tests of means (Fisher's; Smucker et al. 2007).

    Under the hypothesis of no difference each query's two values could as well have come the other way round. All ways
    are tried where at most 13 queries differ, otherwise 10,000 drawn with a fixed seed, the same for all comparisons,
    beside the one observed, so that p is never 0.

    Args:
        differences_CN: float64 [C, N], ours less theirs for C comparisons over the same queries.
    """
    few_C = (differences_CN != 0).sum(axis=1) <= _MOST_TRIED
    found = np.ones(len(differences_CN))
    for place in np.flatnonzero(few_C):
        found[place] = _all_ways(differences_CN[place])
    if not few_C.all():
        found[~few_C] = _drawn_ways(differences_CN[~few_C])
    return found.tolist()


def _all_ways(differences_N: np.ndarray) -> float:
    moved_N = differences_N[differences_N != 0]
    ways = np.arange(2 ** len(moved_N))[:, None] >> np.arange(len(moved_N)) & 1
    return float((np.abs((2.0 * ways - 1) @ moved_N) >= _reached(moved_N[None])).mean())


def _drawn_ways(differences_CN: np.ndarray) -> np.ndarray:
    n = differences_CN.shape[1]
    reached_C = _reached(differences_CN)
    generator = np.random.default_rng(_SEED)
    hits_C, left = np.ones(len(differences_CN)), _SIGN_FLIPS
    while left:
        rows = min(left, max(1, _FLIPS_AT_ONCE // n))
        bits = np.frombuffer(generator.bytes(rows * -(-n // 8)), np.uint8).reshape(rows, -1)
        signs = 2.0 * np.unpackbits(bits, axis=1, count=n) - 1
        hits_C += (np.abs(signs @ differences_CN.T) >= reached_C).sum(axis=0)
        left -= rows
    return hits_C / (_SIGN_FLIPS + 1)


def _reached(differences_CN: np.ndarray) -> np.ndarray:
    """Return the sums to be reached; sums that are equal but for rounding count as equal."""
    return np.abs(differences_CN.sum(axis=1)) - 1e-9 * np.abs(differences_CN).sum(axis=1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method, in the given order."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
