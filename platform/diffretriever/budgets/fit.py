"""Fitting a selector: ridge regression of what more slots gain on query features, trusted only where it pays.

What a query gains from slots is summed up in one number, the slope of its values over log2 K_q, and that is what the
features predict. Five budgets fitted apart would have five times the chances to fit noise; the means of the budgets,
which are not forced onto a line, still decide where the best one lies for an average query.

Legend: A budgets, F features, Q queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from diffretriever.progress import track

_FOLDS = 5
_SEED = 42

# Penalties per query, on standardised features: from nearly none to nearly no slope.
_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)

# A slope is used when its gain on queries it was not fitted on is this many standard errors above 0. Chance alone gets
# there in 4% of made-up sets of 150 queries without any signal.
_SURE = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """Predicted values of all budgets: `intercepts_A + coefficients_AF @ standardised features`.

    Attributes:
        budgets: A numbers K_q, ascending.
        intercepts_A: float64 [A], mean values.
        coefficients_AF: float64 [A, F].
        centre_F: float64 [F].
        scale_F: float64 [F], 1 for a feature that does not vary.
        low_F: float64 [F], the smallest value seen.
        high_F: float64 [F], the largest.
        cost: λ, taken off per slot.
        penalty: ridge penalty per query; None where all coefficients are 0.
    """

    budgets: tuple[int, ...]
    intercepts_A: np.ndarray
    coefficients_AF: np.ndarray
    centre_F: np.ndarray
    scale_F: np.ndarray
    low_F: np.ndarray
    high_F: np.ndarray
    cost: float
    penalty: float | None

    def choose(self, features_QF: np.ndarray) -> np.ndarray:
        """Return each query's place among the budgets, int64 [Q]; of equal budgets the smallest."""
        standard_QF = (np.clip(features_QF, self.low_F, self.high_F) - self.centre_F) / self.scale_F
        scores_QA = self.intercepts_A + standard_QF @ self.coefficients_AF.T - self.cost * np.array(self.budgets)
        return scores_QA.argmax(axis=1)


def fit(features_QF: np.ndarray, values_AQ: np.ndarray, budgets: Sequence[int], cost: float) -> LinearModel:
    """Fit a selector that is the best fixed budget unless the features surely improve on it.

    Each penalty is tried by cross-validation: what the fitted selector gains, value less λ·K_q, over the budget that is
    best on the same training queries. The penalty that gains most is taken if its gain is above 0 by two standard
    errors; otherwise all coefficients are 0, and the choice is the budget with the best mean.

    Args:
        features_QF: float64 [Q, F], finite.
        values_AQ: float64 [A, Q], larger is better.
        budgets: A numbers K_q, ascending.
        cost: λ, at least 0, in units of the value per slot.
    """
    gains = {
        penalty: _held_out_gains(features_QF, values_AQ, budgets, cost, penalty)
        for penalty in track(_PENALTIES, "fitting", "penalties")
    }
    # Of penalties that gain alike the largest: the least said.
    best = max(reversed(_PENALTIES), key=lambda penalty: float(gains[penalty].mean()))
    return _fit(features_QF, values_AQ, budgets, cost, best if _is_sure(gains[best]) else None)


def _is_sure(gains_Q: np.ndarray) -> bool:
    return float(gains_Q.mean()) > _SURE * float(gains_Q.std(ddof=min(1, len(gains_Q) - 1))) / np.sqrt(len(gains_Q))


def _held_out_gains(
    features_QF: np.ndarray, values_AQ: np.ndarray, budgets: Sequence[int], cost: float, penalty: float
) -> np.ndarray:
    """Return what each query gains by a selector fitted on others, float64 [Q]."""
    worth_AQ = values_AQ - cost * np.array(budgets)[:, None]
    gains_Q = np.empty(values_AQ.shape[1])
    for training, test in folds(len(gains_Q)):
        model = _fit(features_QF[training], values_AQ[:, training], budgets, cost, penalty)
        fixed = worth_AQ[:, training].mean(axis=1).argmax()
        gains_Q[test] = worth_AQ[model.choose(features_QF[test]), test] - worth_AQ[fixed, test]
    return gains_Q


def _fit(
    features_QF: np.ndarray, values_AQ: np.ndarray, budgets: Sequence[int], cost: float, penalty: float | None
) -> LinearModel:
    centre_F, spread_F = features_QF.mean(axis=0), features_QF.std(axis=0)
    scale_F = np.where(spread_F > 0, spread_F, 1.0)
    means_A = values_AQ.mean(axis=1)
    n_queries, n_features = features_QF.shape
    coefficients_AF = np.zeros((len(budgets), n_features))
    if penalty is not None:
        standard_QF = (features_QF - centre_F) / scale_F
        # What all budgets share, how hard a query is, says nothing about which is better.
        gains_AQ = values_AQ - values_AQ.mean(axis=0)
        gram_FF = standard_QF.T @ standard_QF + penalty * n_queries * np.eye(n_features)
        slopes_A = np.log2(budgets) - np.log2(budgets).mean()
        wanted_Q = slopes_A @ gains_AQ / max(float(slopes_A @ slopes_A), 1e-12)
        coefficients_AF = np.outer(slopes_A, np.linalg.solve(gram_FF, standard_QF.T @ wanted_Q))
    return LinearModel(
        budgets=tuple(budgets),
        intercepts_A=means_A,
        coefficients_AF=coefficients_AF,
        centre_F=centre_F,
        scale_F=scale_F,
        low_F=features_QF.min(axis=0),
        high_F=features_QF.max(axis=0),
        cost=cost,
        penalty=penalty,
    )


def folds(n_queries: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (training, test) as int64 positions, five times; every query is in one test part.

    The parts are drawn with a fixed seed, so equal sets of queries are always divided alike. A single query is its own
    training part: there is nothing to divide.
    """
    if n_queries == 1:
        yield np.zeros(1, np.int64), np.zeros(1, np.int64)
        return
    shuffled_Q = np.random.default_rng(_SEED).permutation(n_queries)
    parts = np.array_split(shuffled_Q, min(_FOLDS, n_queries))
    for number, test in enumerate(parts):
        yield np.sort(np.concatenate(parts[:number] + parts[number + 1 :])), np.sort(test)
