"""Dropping a passage's slots: copies first, the loss as defined, and a bound on what MaxSim loses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from diffretriever.studies.budgets.pruning import removal_orders, removals


def unit(n: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, dimensions))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def loss_of(vectors: np.ndarray, kept: list[int]) -> float:
    dropped = [i for i in range(len(vectors)) if i not in kept]
    return sum(min(float(((vectors[i] - vectors[j]) ** 2).sum()) / 2 for j in kept) for i in dropped)


def test_each_removal_is_the_cheapest_one_left() -> None:
    vectors = unit(7, 5, 0)
    order, losses = (found[0] for found in removal_orders(vectors[None]))
    kept = list(range(7))
    for slot, loss in zip(order.tolist(), losses.tolist(), strict=True):
        cheapest = min(loss_of(vectors, [k for k in kept if k != candidate]) for candidate in kept)
        kept.remove(slot)
        assert loss == pytest.approx(loss_of(vectors, kept))
        assert loss == pytest.approx(cheapest)
    assert len(kept) == 1
    assert (np.diff(losses) >= -1e-12).all()


def ragged(counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    return unit(sum(counts), 6, seed), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def test_all_passages_at_once_are_each_passage_by_itself() -> None:
    vectors, offsets = ragged([4, 1, 7, 4, 2, 7], 3)
    found = removals(vectors, offsets)
    for first, end in pairwise(offsets.tolist()):
        order, losses = (each[0] for each in removal_orders(vectors[None, first:end]))
        ranks, costs = found.ranks_N[first:end], found.costs_N[first:end]
        assert np.argsort(ranks)[:-1].tolist() == order.tolist()
        assert np.isinf(costs).sum() == 1
        assert np.sort(costs)[:-1] == pytest.approx(np.maximum.accumulate(np.diff(losses, prepend=0)))


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_the_same_number_stays_of_every_passage(most: int) -> None:
    vectors, offsets = ragged([4, 1, 7, 4], 4)
    kept = removals(vectors, offsets).keep_each(most)
    for first, end in pairwise(offsets.tolist()):
        order = removal_orders(vectors[None, first:end])[0][0]
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
