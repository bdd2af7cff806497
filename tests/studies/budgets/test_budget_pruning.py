"""Dropping a passage's slots: copies first, the loss as defined, and a bound on what MaxSim loses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from diffretriever.studies.budgets.pruning import removal_order, removals


def unit(n: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, dimensions))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def loss_of(vectors: np.ndarray, kept: list[int]) -> float:
    dropped = [i for i in range(len(vectors)) if i not in kept]
    return sum(min(float(((vectors[i] - vectors[j]) ** 2).sum()) / 2 for j in kept) for i in dropped)


def kept_slots(vectors: np.ndarray, tolerance: float) -> np.ndarray:
    """The slots that stay when as many go as cost at most `tolerance` together, up to rounding."""
    order, losses = removal_order(vectors)
    n_dropped = int(np.searchsorted(np.maximum.accumulate(losses), tolerance + 1e-6, side="right"))
    return np.setdiff1d(np.arange(len(vectors)), order[:n_dropped])


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


def ragged(counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    return unit(sum(counts), 6, seed), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def test_all_passages_at_once_are_each_passage_by_itself() -> None:
    vectors, offsets = ragged([4, 1, 7, 4, 2, 7], 3)
    found = removals(vectors, offsets)
    for first, end in pairwise(offsets.tolist()):
        order, losses = removal_order(vectors[first:end])
        ranks, costs = found.ranks_N[first:end], found.costs_N[first:end]
        assert np.argsort(ranks)[:-1].tolist() == order.tolist()
        assert np.isinf(costs).sum() == 1
        assert np.sort(costs)[:-1] == pytest.approx(np.maximum.accumulate(np.diff(losses, prepend=0)))


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_the_same_number_stays_of_every_passage(most: int) -> None:
    vectors, offsets = ragged([4, 1, 7, 4], 4)
    kept = removals(vectors, offsets).keep_each(most)
    for first, end in pairwise(offsets.tolist()):
        order, _ = removal_order(vectors[first:end])
        n_dropped = max(0, end - first - most)
        assert set(np.flatnonzero(~kept[first:end])) == set(order[:n_dropped])


@pytest.mark.parametrize("total", range(4, 21))
def test_a_total_is_met_by_one_threshold_on_the_cost(total: int) -> None:
    vectors, offsets = ragged([4, 1, 7, 4, 4], 5)
    found = removals(vectors, offsets)
    kept = found.keep_total(total)
    assert kept.sum() == max(total, 5), "every passage keeps a slot"
    assert (np.add.reduceat(kept, offsets[:-1]) >= 1).all()
    if not kept.all():
        assert found.costs_N[~kept].max() <= found.costs_N[kept].min()


def test_redundant_passages_lose_more() -> None:
    distinct, copies = np.eye(4, 6), np.tile(np.eye(1, 6), (4, 1))
    kept = removals(np.concatenate([distinct, copies]), np.array([0, 4, 8])).keep_total(5)
    assert kept.tolist() == [True] * 4 + [True, False, False, False]
