"""Batches by a token budget, for any lengths and any budget, and the budget that fits in memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.encoders.batching import (
    LEAST_TOKENS,
    TOKENS_PER_BATCH_GPU,
    fitting_tokens,
    packed_batches,
    similar_lengths,
    token_budget_batches,
)

LENGTHS = st.lists(st.integers(0, 600), max_size=60)
BUDGETS = st.integers(1, 5000)


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_every_text_once_longest_first_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    batches = list(token_budget_batches(array, budget))
    order = np.concatenate([np.zeros(0, np.int64), *batches])
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(array[order]) <= 0).all()
    for batch in batches:
        assert len(batch) == 1 or len(batch) * array[batch].max() <= budget


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_a_batch_is_as_full_as_its_longest_text_allows(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    for batch in list(token_budget_batches(array, budget))[:-1]:
        assert (len(batch) + 1) * max(1, array[batch].max()) > budget


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_equal_lengths_keep_their_order(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    order = np.concatenate([np.zeros(0, np.int64), *token_budget_batches(array, budget)])
    assert all(a < b for a, b in pairwise(order) if array[a] == array[b])


@settings(deadline=None)
@given(LENGTHS, BUDGETS)
def test_packed_batches_are_filled_by_real_tokens(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    batches = list(packed_batches(array, budget))
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


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.integers(1, 1 << 24))
def test_a_batch_takes_four_fifths_of_the_memory(free: int, fixed: int, per_token: int) -> None:
    small, large = ((tokens, fixed + tokens * per_token) for tokens in (1000, 4000))
    tokens = fitting_tokens(small, large, free)
    assert LEAST_TOKENS <= tokens <= TOKENS_PER_BATCH_GPU
    assert tokens == LEAST_TOKENS or fixed + tokens * per_token <= 0.8 * free * (1 + 1e-9) + 1
    assert tokens == TOKENS_PER_BATCH_GPU or fixed + (tokens + 2) * per_token > 0.8 * free * (1 - 1e-9)
    assert fitting_tokens(small, (4000, small[1]), free) == TOKENS_PER_BATCH_GPU
