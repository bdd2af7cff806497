"""Hits as Arrow tables, and their merge."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from diffretriever.search.batch import kept_hits, merge, searched_depth, to_hits, to_table
from diffretriever.vectors.hits import Hits, Passages, top_k

IDS = ["b", "a", "é", "Z", "10", "9", "𝄞", "\uff5e", "c d", "", "ab"]


def test_hits_survive_a_table() -> None:
    hits = Hits.of([[("a", 0.1), ("b", 1 / 3)], [], [("é", -0.0)], []])
    others = Hits.of([[("b", 2.0)], [("c", 1.0)], [], []])
    found = to_hits({"dense": to_table(hits), "sparse": to_table(others)}, 4)
    assert found == {"dense": hits, "sparse": others}
    assert found["dense"].passages is found["sparse"].passages, "numbers mean the same"
    assert to_hits({"dense": to_table(Hits.of([]))}, 0) == {"dense": []}


def test_rows_of_hits_survive_a_table() -> None:
    passages, numbers_F = Passages.numbered(pa.array(["b", "a", "b"], pa.large_string()))
    known = Passages(passages.ids, np.array([7, 9]))
    hits = Hits(known, np.array([0, 2, 3]), numbers_F, np.array([2.0, 1.0, 0.5]))
    found = to_hits({"dense": merge([to_table(hits, with_rows=True)], 2)}, 2)["dense"]
    assert found == hits
    assert found.rows().tolist() == [9, 7, 9]


@pytest.mark.parametrize("k", [1, 3, 100])
def test_merged_parts_equal_a_search_of_the_whole(k: int) -> None:
    rng = np.random.default_rng(k)
    ids = [f"{i}{n}" for n, i in enumerate(IDS * 6)]
    # Few different scores, so that ids decide often.
    scores_QP = rng.integers(0, 4, (5, len(ids))).astype(np.float32) / 3
    owner_P = rng.integers(0, 4, len(ids))
    parts = []
    for part in range(4):
        own = np.flatnonzero(owner_P == part)
        parts.append(to_table(Hits.of(top_k(scores_P[own], [ids[i] for i in own], k) for scores_P in scores_QP)))
    expected = [top_k(scores_P, ids, k) for scores_P in scores_QP]
    assert to_hits({"dense": merge(parts, k)}, 5) == {"dense": expected}


def test_a_querys_own_document_is_replaced_by_the_next() -> None:
    hits = Hits.of([[("q1", 3.0), ("a", 2.0), ("b", 1.0)]] * 2)
    assert searched_depth(2, exclude_self=True) == 3
    assert kept_hits(["q1", "a"], hits, 2, exclude_self=True) == [
        [("a", 2.0), ("b", 1.0)], [("q1", 3.0), ("b", 1.0)]
    ]  # fmt: skip
    assert kept_hits(["q1", "a"], hits, 2, exclude_self=False) == [[("q1", 3.0), ("a", 2.0)]] * 2
    assert kept_hits(["x", "a"], hits, 1, exclude_self=True) == [[("q1", 3.0)]] * 2
