"""Dropping a passage's slots: copies first, the loss as defined, and a bound on what MaxSim loses."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.budgets.pruning import kept_slots, removal_order


def unit(n: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, dimensions))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def loss_of(vectors: np.ndarray, kept: list[int]) -> float:
    dropped = [i for i in range(len(vectors)) if i not in kept]
    return sum(min(float(((vectors[i] - vectors[j]) ** 2).sum()) / 2 for j in kept) for i in dropped)


def test_each_removal_is_the_cheapest_one_left() -> None:
    vectors = unit(7, 5, 0)
    order, losses = removal_order(vectors)
    kept = list(range(7))
    for slot, loss in zip(order.tolist(), losses.tolist(), strict=True):
        cheapest = min(loss_of(vectors, [k for k in kept if k != candidate]) for candidate in kept)
        kept.remove(slot)
        assert loss == pytest.approx(loss_of(vectors, kept))
        assert loss == pytest.approx(cheapest)
    assert len(kept) == 1
    assert (np.diff(losses) >= -1e-12).all()


def test_copies_go_first_and_cost_nothing() -> None:
    vectors = unit(3, 8, 1)[[0, 1, 0, 2, 1]].astype(np.float16)
    order, losses = removal_order(vectors)
    assert order[:2].tolist() in ([4, 2], [2, 4])
    assert losses[:2] == pytest.approx([0.0, 0.0], abs=2e-3)
    exact = unit(3, 8, 1)[[0, 1, 0, 2, 1]]
    assert kept_slots(exact, 0.0).tolist() == [0, 1, 3]


@pytest.mark.parametrize("seed", range(5))
def test_a_query_vector_loses_at_most_the_distance_to_the_nearest_kept_slot(seed: int) -> None:
    vectors, queries = unit(8, 4, seed), unit(200, 4, 100 + seed)
    kept = kept_slots(vectors, 0.5)
    worst = max(min(np.linalg.norm(vectors[i] - vectors[j]) for j in kept) for i in range(8))
    lost = (queries @ vectors.T).max(axis=1) - (queries @ vectors[kept].T).max(axis=1)
    assert lost.max() <= worst + 1e-12
    assert loss_of(vectors, kept.tolist()) <= 0.5 + 1e-6


def test_one_slot_stays() -> None:
    assert kept_slots(unit(1, 4, 0), 9.0).tolist() == [0]
    assert len(kept_slots(unit(6, 4, 0), 1000.0)) == 1
    assert kept_slots(unit(6, 40, 0), 0.0).tolist() == list(range(6))
    assert removal_order(unit(1, 4, 0))[0].tolist() == []
