"""Oracles that choose a budget per query by its own result, with a control for luck (paper §6.3).

An oracle gains even over runs that differ by noise alone, because it takes a maximum. A query that truly needs K_q = 8
needs it at every K_p, whereas luck at one K_p does not repeat. So the control chooses a query's K_q by its results at
the *other* K_p, and is credited with the value that it did not see; likewise for K_p, and for both by the other cells
of the same row and column. Other queries decide how far to trust that evidence; unless it gains more than a standard
error there, the control keeps the fixed budget. The control's gain carries over; the rest of the oracle's gain is luck.

Two errors remain: runs of one query share its vectors, so some luck carries over, and evidence from few budgets is
noisy, so some preference counts as luck. The part that another fixed budget of the data set would gain is separate.

Legend: A query budgets, B passage budgets, C candidates, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.budgets.selectors import folds
from diffretriever.schemas.budget import Budget
from diffretriever.studies.budgets.sweep_files import Outcomes

Side: TypeAlias = Literal["query", "passage", "joint"]
"""What an oracle adapts: K_q, K_p or both."""

SIDES: tuple[Side, ...] = ("query", "passage", "joint")

# How far a query's own evidence is believed: the shares that are tried on other queries.
_TRUSTS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Oracle:
    """Values of every query, float64 [Q] each; an oracle's gain is the sum of its three steps."""

    fixed_Q: np.ndarray
    dataset_Q: np.ndarray
    """With the candidate whose mean is best on other queries: the gain of the data set."""
    carried_Q: np.ndarray | None
    """With the candidate that other cells name: the gain of the query. None without other cells."""
    best_Q: np.ndarray
    """With the query's own best candidate; the rest of the gain is luck."""

    @property
    def headroom(self) -> np.ndarray:
        """What the oracle gains over the fixed budget, float64 [Q]."""
        return self.best_Q - self.fixed_Q

    @property
    def carried_gain(self) -> np.ndarray | None:
        """What carries over: the headroom less its control, float64 [Q]."""
        return None if self.carried_Q is None else self.carried_Q - self.fixed_Q

    @property
    def luck(self) -> np.ndarray | None:
        """The control: the oracle's gain by luck, float64 [Q]."""
        return None if self.carried_Q is None else self.best_Q - self.carried_Q


def oracle(outcomes: Outcomes, fixed: Budget, side: Side) -> Oracle:
    """Return the oracle that adapts `side` per query, and its control; raise `ValueError` if `fixed` was not swept."""
    a, b = outcomes.place(fixed)
    values_CQ, evidence_CQ, start = _candidates(outcomes.values_ABQ, a, b, side)
    fixed_Q, everyone = values_CQ[start], np.arange(len(outcomes.queries))
    dataset_Q, carried_Q = fixed_Q.copy(), fixed_Q.copy()
    for training, test in folds(len(everyone)):
        means_C1 = values_CQ[:, training].mean(axis=1, keepdims=True)
        best_Q = np.full(len(everyone), _first_best(means_C1, start)[0])
        own_CQ = np.zeros_like(values_CQ) if evidence_CQ is None else _deviation(evidence_CQ, training)
        moves = [_first_best(means_C1 + trust * own_CQ, start) for trust in _TRUSTS]
        for gained_Q, rules in ((dataset_Q, [best_Q]), (carried_Q, [best_Q, *moves])):
            chosen_Q = _surest(values_CQ, training, start, rules)
            gained_Q[test] = values_CQ[chosen_Q[test], test]
    return Oracle(fixed_Q, dataset_Q, None if evidence_CQ is None else carried_Q, values_CQ.max(axis=0))


def best_query_budgets(outcomes: Outcomes, passage_budget: int) -> np.ndarray:
    """Return each query's K_q with the highest value at `passage_budget`, int64 [Q]; of equals the smallest."""
    _, b = outcomes.place(Budget(outcomes.query_budgets[0], passage_budget))
    # argmax takes the first, and budgets ascend.
    return np.array(outcomes.query_budgets)[outcomes.values_ABQ[:, b].argmax(axis=0)]


def decided(outcomes: Outcomes, passage_budget: int) -> np.ndarray:
    """Return for each query whether its K_q matters at all at `passage_budget`, bool [Q]."""
    _, b = outcomes.place(Budget(outcomes.query_budgets[0], passage_budget))
    return np.ptp(outcomes.values_ABQ[:, b], axis=0) > 0


def _candidates(values_ABQ: np.ndarray, a: int, b: int, side: Side) -> tuple[np.ndarray, np.ndarray | None, int]:
    n_a, n_b, n_queries = values_ABQ.shape
    across_b = _others_mean(values_ABQ, axis=1)
    across_a = _others_mean(values_ABQ, axis=0)
    if side == "query":
        return values_ABQ[:, b], None if across_b is None else across_b[:, b], a
    if side == "passage":
        return values_ABQ[a], None if across_a is None else across_a[a], b
    flat = (n_a * n_b, n_queries)
    evidence = None if across_a is None or across_b is None else ((across_a + across_b) / 2).reshape(flat)
    return values_ABQ.reshape(flat), evidence, a * n_b + b


def _others_mean(values_ABQ: np.ndarray, axis: int) -> np.ndarray | None:
    n = values_ABQ.shape[axis]
    return None if n == 1 else (values_ABQ.sum(axis=axis, keepdims=True) - values_ABQ) / (n - 1)


def _deviation(evidence_CQ: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Subtract the query's mean over candidates, then the mean that the training queries share."""
    own_CQ = evidence_CQ - evidence_CQ.mean(axis=0)
    return own_CQ - own_CQ[:, training].mean(axis=1, keepdims=True)


def _surest(values_CQ: np.ndarray, training: np.ndarray, start: int, rules: list[np.ndarray]) -> np.ndarray:
    """Return the rule whose training gain less a standard error is highest; the fixed budget if none is positive."""
    surest, best = np.full(values_CQ.shape[1], start), 0.0
    for places_Q in rules:
        gains = values_CQ[places_Q[training], training] - values_CQ[start, training]
        sure = float(gains.mean() - gains.std() / np.sqrt(len(gains)))
        if sure > best:
            surest, best = places_Q, sure
    return surest


def _first_best(scores_CQ: np.ndarray, start: int) -> np.ndarray:
    highest_Q = scores_CQ.max(axis=0)
    # Equal but for rounding is equal: a query without a preference stays where it is.
    stays_Q = scores_CQ[start] >= highest_Q - 1e-12
    return np.where(stays_Q, start, scores_CQ.argmax(axis=0))
