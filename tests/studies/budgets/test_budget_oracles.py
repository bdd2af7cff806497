"""Oracles on outcomes whose truth is known: noise has no headroom beyond luck, and what was planted is found."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.evaluation.statistics import bootstrap_interval
from diffretriever.schemas.budget import Budget
from diffretriever.studies.budgets.oracles import SIDES, Side, best_query_budgets, decided, oracle
from tests.studies.budgets.sweeps import BUDGETS, noise, outcomes, preferences

FIXED = Budget(4, 4)
PLANTED = 0.2


def planted(side: Side, n: int, seed: int) -> tuple[np.ndarray, float]:
    """Return outcomes in which each query gains .2 on its own place, and the mean gain of knowing it."""
    values = noise(n, seed=seed, spread=0.03)
    wanted_a, wanted_b = preferences(n, seed=seed), preferences(n, seed=seed + 1)
    if side != "passage":
        values[wanted_a, :, np.arange(n)] += PLANTED
    if side != "query":
        values[:, wanted_b, np.arange(n)] += PLANTED
    return values, PLANTED * (2 if side == "joint" else 1) * 0.8


@pytest.mark.parametrize("side", SIDES)
def test_values_are_those_of_a_plain_loop(side: Side) -> None:
    values = noise(30)
    found = oracle(outcomes(values), FIXED, side)
    rows = [2] if side == "passage" else range(5)
    columns = [2] if side == "query" else range(5)
    for q in range(30):
        assert found.fixed_Q[q] == values[2, 2, q]
        assert found.best_Q[q] == max(values[a, b, q] for a in rows for b in columns)


@pytest.mark.parametrize("side", SIDES)
def test_noise_gains_but_by_luck_alone(side: Side) -> None:
    found = oracle(outcomes(noise(600)), FIXED, side)
    assert found.carried_gain is not None
    assert bootstrap_interval(found.headroom)[0] > 0.08
    low, high = bootstrap_interval(found.carried_gain)
    assert low < 0.004
    assert high > -0.004
    assert abs(found.carried_gain.mean()) < 0.012


@pytest.mark.parametrize("side", SIDES)
def test_a_planted_preference_carries_over(side: Side) -> None:
    values, truth = planted(side, 600, 0)
    found = oracle(outcomes(values), FIXED, side)
    assert found.carried_gain is not None
    low, high = bootstrap_interval(found.carried_gain)
    assert low - 0.005 < truth < high + 0.005
    assert abs(found.dataset_Q.mean() - found.fixed_Q.mean()) < 0.02


def test_the_control_never_sees_the_value_it_is_credited_with() -> None:
    """A stroke of luck at the fixed passage budget draws no query there, though it draws the oracle."""
    values, _ = planted("query", 200, 5)
    before = oracle(outcomes(values), FIXED, "query")
    assert before.carried_Q is not None
    for query in range(5):
        places = np.flatnonzero(values[:, 2, query] == before.carried_Q[query])
        lucky = values.copy()
        lucky[(places[0] + 1) % 5, 2, query] = 9.0
        after = oracle(outcomes(lucky), FIXED, "query")
        assert after.carried_Q is not None
        assert after.carried_Q[query] == before.carried_Q[query]
        assert after.best_Q[query] == 9.0


def test_without_a_second_passage_budget_there_is_no_control() -> None:
    values = noise(20)[:, 2:3]
    found = oracle(outcomes(values), Budget(4, 1), "query")
    assert (found.carried_Q, found.carried_gain, found.luck) == (None, None, None)
    assert oracle(outcomes(values), Budget(4, 1), "passage").carried_Q is not None


def test_the_best_query_budget_is_the_smallest_of_equals() -> None:
    values = np.zeros((5, 5, 3))
    values[[1, 3], 2, 0] = 1.0
    values[4, 2, 1] = 1.0
    made = outcomes(values)
    assert best_query_budgets(made, 4).tolist() == [BUDGETS[1], BUDGETS[4], BUDGETS[0]]
    assert decided(made, 4).tolist() == [True, True, False]
