"""How different slots are and which win, against loops over pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from diffretriever.studies.budgets.slots import mean_pairwise_cosines, slots_in_use, winning_slots


def test_cosines_are_means_over_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float16)
    found = mean_pairwise_cosines(vectors, np.array([0, 3, 4, 4, 10]))
    for text, rows in ((0, range(3)), (3, range(4, 10))):
        wide = vectors.astype(np.float64)
        pairs = [
            wide[i] @ wide[j] / (np.linalg.norm(wide[i]) * np.linalg.norm(wide[j])) for i, j in combinations(rows, 2)
        ]
        assert found[text] == pytest.approx(np.mean(pairs))
    assert np.isnan(found[1:3]).all(), "one slot has no pair"


def test_one_vector_again_and_again_has_cosine_one() -> None:
    vectors = np.tile(np.array([[0.6, 0.8]]), (5, 1))
    assert mean_pairwise_cosines(vectors, np.array([0, 5])) == pytest.approx([1.0])


def test_the_winner_is_the_slot_that_maxsim_takes() -> None:
    generator = np.random.default_rng(1)
    query, passage = generator.normal(size=(4, 6)), generator.normal(size=(3, 6))
    expected = [max(range(3), key=lambda b: float(query[a] @ passage[b])) for a in range(4)]
    assert winning_slots(query, passage).tolist() == expected
    assert winning_slots(query, passage[[0, 0, 0]]).tolist() == [0, 0, 0, 0], "of equal ones the first"


def test_slots_in_use() -> None:
    assert slots_in_use(np.full(4, 0.25)) == pytest.approx(4.0)
    assert slots_in_use(np.array([0.0, 1.0, 0.0])) == 1.0
    assert slots_in_use(np.array([0.5, 0.5, 0.0])) == pytest.approx(2.0)
