"""Hits as arrays equal their lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.vectors.hits import NO_NUMBER, Hit, Hits, Passages

IDS = ["b", "é", "a", "𝄞", "Z", "\uff5e", "10", "9"]
lists = st.lists(
    st.dictionaries(st.sampled_from(IDS), st.floats(allow_nan=False), max_size=6).map(lambda found: [*found.items()]),
    max_size=5,
)


@settings(deadline=None)
@given(ranked=lists, k=st.integers(1, 7), data=st.data())
def test_hits_equal_their_lists_when_cut_and_filtered(ranked: list[list[Hit]], k: int, data: st.DataObject) -> None:
    hits = Hits.of(ranked)
    assert hits == ranked
    assert [hits[query] for query in range(len(hits))] == ranked
    assert hits.first(k) == [found[:k] for found in ranked]
    own = data.draw(st.lists(st.sampled_from([*IDS, "other"]), min_size=len(ranked), max_size=len(ranked)))
    assert hits.without(own) == [
        [hit for hit in found if hit[0] != name] for found, name in zip(ranked, own, strict=True)
    ]
    assert hits.names() == hits.ids().to_pylist() == [passage for found in ranked for passage, _ in found]


def test_numbers_follow_the_order_of_code_points() -> None:
    passages, numbers = Passages.numbered(pa.array([*IDS, "a"], pa.string()))
    assert passages.ids.to_pylist() == sorted(IDS)
    assert [sorted(IDS)[number] for number in numbers] == [*IDS, "a"]
    assert passages.numbers_of(["Z", "none", "10"]).tolist() == [2, NO_NUMBER, 0]


def test_hits_can_be_indexed_and_sliced() -> None:
    hits = Hits.of([[("a", 2.0), ("b", 1.0)], [], [("c", 3.0)]])
    assert hits[-1] == [("c", 3.0)]
    assert hits[1:] == [[], [("c", 3.0)]]
    assert hits[3:] == hits[2:1] == []
    assert hits != Hits.of([[("a", 2.0), ("c", 1.0)], [], [("c", 3.0)]])
    with pytest.raises(IndexError):
        hits[3]


@settings(deadline=None)
@given(ranked=lists, others=lists, data=st.data())
def test_hits_can_be_reordered_and_renumbered(
    ranked: list[list[Hit]], others: list[list[Hit]], data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(-1, len(ranked) - 1), max_size=7))
    chosen = Hits.of(ranked).of_queries(np.array(places, np.int64))
    assert chosen == [ranked[place] if place >= 0 else [] for place in places]
    one, other = Hits.numbered_alike([Hits.of(ranked), Hits.of(others)])
    assert one == ranked
    assert other == others
    assert one.passages is other.passages
