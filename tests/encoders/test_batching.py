"""Batches by a token budget, for any lengths and any budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.encoders.batching import similar_lengths, token_batches

LENGTHS = st.lists(st.integers(0, 600), max_size=60)
BUDGETS = st.integers(1, 5000)


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_every_text_once_longest_first_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    batches = list(token_batches(array, budget))
    order = np.concatenate([np.zeros(0, np.int64), *batches])
    assert order.tolist() == np.argsort(-array, kind="stable").tolist()
    for batch in batches:
        assert len(batch) == 1 or len(batch) * array[batch].max() <= budget
    for batch in batches[:-1]:
        assert (len(batch) + 1) * max(1, array[batch].max()) > budget


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_packed_batches_are_filled_by_real_tokens(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    batches = list(token_batches(array, budget, packed=True))
    order = np.concatenate([np.zeros(0, np.int64), *batches])
    assert order.tolist() == np.argsort(-array, kind="stable").tolist()
    for batch in batches:
        assert len(batch) == 1 or (array[batch].sum() <= budget and len(batch) * array[batch].max() <= 2 * budget)
    for batch, following in pairwise(batches):
        is_full = array[batch].sum() + array[following[0]] > budget
        assert is_full or (len(batch) + 1) * max(1, array[batch].max()) > 2 * budget


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_groups_of_similar_lengths(lengths: list[int], least_tokens: int) -> None:
    array = np.array(lengths, np.int64)
    groups = list(similar_lengths(array, least_tokens))
    order = np.concatenate([np.zeros(0, np.int64), *groups])
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(array[order]) <= 0).all()
    for group in groups:
        longest = max(1, int(array[group].max()))
        shorter = array[group] < 0.8 * longest
        assert not shorter.any() or (len(group) - 1) * longest < least_tokens
    for group, following in pairwise(groups):
        longest = max(1, int(array[group].max()))
        assert len(group) * longest >= least_tokens
        assert array[following].max() < 0.8 * longest
