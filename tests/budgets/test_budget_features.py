"""Query features against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from diffretriever.budgets.features import (
    FEATURES,
    DocumentFrequencies,
    FirstSlots,
    QueryText,
    check_names,
    count_documents,
    features_of,
)


def test_known_values() -> None:
    found = features_of(QueryText("What is the heat-transfer in a slab? Heat!", (5, 7, 5, 9)))
    assert found == {"length": 4.0, "entropy": 1.5, "content_words": 3.0}


def test_idf_by_hand() -> None:
    frequencies = DocumentFrequencies(7, {"heat": 0, "slab": 1, "the": 7})
    query = QueryText("Heat, the SLAB! slab unseen", (1,), frequencies, FirstSlots(0.75, 0.5, 0.25))
    found = features_of(query)
    assert found["mean_idf"] == pytest.approx((3 + 2 + 0 + 3) / 4)
    assert found["max_idf"] == 3.0
    assert (found["confidence"], found["agreement"], found["added"]) == (0.75, 0.5, 0.25)
    assert list(found) == list(FEATURES)
    assert {*FEATURES} - {*features_of(QueryText("x", (1,), frequencies, FirstSlots(0.75)))} == {"agreement", "added"}


def test_documents_are_counted_once_a_word() -> None:
    found = count_documents(["Heat heat slab", "heat-transfer", "wing_slab"])
    assert found.passages == 3
    assert found.of_word == {"heat": 2, "slab": 2, "transfer": 1, "wing": 1}


def test_an_empty_query_has_finite_features() -> None:
    found = features_of(QueryText("", (), DocumentFrequencies(1, {}), FirstSlots(0.0, 0.0, 0.0)))
    assert all(math.isfinite(value) for value in found.values())
    assert set(found.values()) == {0.0}


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(ValueError, match=r"no query feature 'lenght'. Did you mean 'length'\?"):
        check_names(["entropy", "lenght"])
