"""Batches do not depend on the number of workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffretriever.encoders import load_preparer
from diffretriever.schemas.training import Recipe
from diffretriever.training.batches import Batches
from diffretriever.training.data.seeds import derived_seed, draw
from diffretriever.training.gather import Workers
from tests.training.trainer_cases import ALONE, FolderOf, ListedData, config_of, quick_recipe


def batches_of(recipe: Recipe, folder_of: FolderOf, workers: Workers = ALONE, size: int = 50) -> Batches:
    return Batches(ListedData(size), load_preparer(config_of("masked-dream", folder_of)), recipe, workers)


def test_a_batch_is_the_same_for_any_number_of_workers(folder_of: FolderOf) -> None:
    recipe = quick_recipe(max_steps=12, query_budgets=(1, 2))
    alone = batches_of(recipe, folder_of)
    assert (alone.total_steps, batches_of(quick_recipe(), folder_of).total_steps) == (12, 50 // 8)
    several = [batches_of(recipe, folder_of, Workers(rank, 4)) for rank in range(4)]
    for step in range(alone.total_steps):
        expected = alone.micro_batches(step)
        actual = sorted(
            (part for batches in several for part in batches.micro_batches(step)), key=lambda part: part.number
        )
        assert [part.number for part in expected] == [part.number for part in actual] == [0, 1, 2, 3]
        for one, other in zip(expected, actual, strict=True):
            assert one.query_ids == other.query_ids
            for texts, others in ((one.queries, other.queries), (one.passages, other.passages)):
                assert [t.input_ids.tolist() for t in texts] == [t.input_ids.tolist() for t in others]
            assert torch.equal(one.passage_keys, other.passage_keys)


def test_an_epoch_has_each_query_at_most_once(folder_of: FolderOf) -> None:
    batches = batches_of(quick_recipe(max_steps=12), folder_of)
    epochs = [
        [query for step in range(start, start + 6) for part in batches.micro_batches(step) for query in part.query_ids]
        for start in (0, 6)
    ]
    assert all(len(set(queries)) == len(queries) == 48 for queries in epochs)
    assert epochs[0] != epochs[1]
    assert len(batches.micro_batches(0)[0].passages) == 2 * 3


def test_prefetching_gives_the_same_micro_batches(folder_of: FolderOf) -> None:
    batches = batches_of(quick_recipe(max_steps=4), folder_of)
    assert [step for step, _ in batches.prefetched(1)] == [1, 2, 3]
    prefetched = [micro_batches[0].query_ids for _, micro_batches in batches.prefetched(2)]
    assert prefetched == [batches.micro_batches(step)[0].query_ids for step in (2, 3)]
    assert list(batches.prefetched(4)) == []


def test_budgets_are_drawn_by_the_step(folder_of: FolderOf) -> None:
    batches = batches_of(quick_recipe(query_budgets=(1, 2, 4), passage_budgets=(1, 3), max_steps=30), folder_of)
    drawn = [
        (
            {t.slots for part in batches.micro_batches(s) for t in part.queries},
            {t.slots for t in batches.micro_batches(s)[0].passages},
        )
        for s in range(30)
    ]
    assert all(len(query) == len(passage) == 1 for query, passage in drawn)
    assert {min(query) for query, _ in drawn} == {1, 2, 4}
    assert {min(passage) for _, passage in drawn} == {1, 3}
    assert len({(min(query), min(passage)) for query, passage in drawn}) == 6


def test_seeds_of_a_purpose() -> None:
    assert derived_seed("dropout", 42, 0, 1) == 6701663816506290322  # on every platform
    assert derived_seed("a", 1) != derived_seed("a", 2) != derived_seed("b", 2)
    drawn = [draw((1, 2, 4), "budget", step) for step in range(300)]
    assert all(80 < count < 120 for count in np.unique(drawn, return_counts=True)[1])


@pytest.mark.parametrize(("size", "workers", "message"), [(7, 1, "has 7 queries"), (50, 3, "3 workers cannot share")])
def test_batches_that_cannot_be_formed_are_refused(size: int, workers: int, message: str, folder_of: FolderOf) -> None:
    with pytest.raises(ValueError, match=message):
        batches_of(quick_recipe(), folder_of, Workers(0, workers), size)
