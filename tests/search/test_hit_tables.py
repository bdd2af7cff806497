"""Hits as tables, merged: what a search of the whole gives."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.scoring.topk import Hits, top_k
from diffretriever.search.batch import kept_hits, merge, searched_depth, to_hits, to_table

IDS = ["b", "a", "é", "Z", "10", "9", "𝄞", "\uff5e", "c d", "", "ab"]


def test_a_table_gives_back_the_hits() -> None:
    hits: Hits = [[("a", 0.1), ("b", 1 / 3)], [], [("é", -0.0)], []]
    assert to_hits(to_table(hits), 4) == hits
    assert to_hits(to_table([]), 0) == []


@pytest.mark.parametrize("k", [1, 3, 100])
def test_parts_merged_are_the_whole(k: int) -> None:
    rng = np.random.default_rng(k)
    ids = [f"{i}{n}" for n, i in enumerate(IDS * 6)]
    # Few different scores, so that ids decide often.
    scores_QP = rng.integers(0, 4, (5, len(ids))).astype(np.float32) / 3
    owner_P = rng.integers(0, 4, len(ids))
    parts = []
    for part in range(4):
        own = np.flatnonzero(owner_P == part)
        parts.append(to_table([top_k(scores_P[own], [ids[i] for i in own], k) for scores_P in scores_QP]))
    expected = [top_k(scores_P, ids, k) for scores_P in scores_QP]
    assert to_hits(merge(parts, k), 5) == expected


def test_a_query_without_hits_in_any_part_has_none() -> None:
    parts: list[Hits] = [[[], [("a", 1.0)]], [[], [("b", 2.0)]]]
    assert to_hits(merge([to_table(part) for part in parts], 5), 2) == [[], [("b", 2.0), ("a", 1.0)]]


def test_a_querys_own_document_makes_room_for_another() -> None:
    hits = [("q1", 3.0), ("a", 2.0), ("b", 1.0)]
    assert searched_depth(2, exclude_self=True) == 3
    assert kept_hits("q1", hits, 2, exclude_self=True) == [("a", 2.0), ("b", 1.0)]
    assert kept_hits("q1", hits, 2, exclude_self=False) == [("q1", 3.0), ("a", 2.0)]
    assert kept_hits("a", hits, 1, exclude_self=True) == [("q1", 3.0)]
