import math
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.collections import Run
from diffretriever.schemas.fusion import Fusion
from diffretriever.schemas.mode import ListName
from diffretriever.vectors.fusion import FUSION_DEPTH, fused, ranked
from diffretriever.vectors.hits import Hit, Hits, Passages, ranked_hits

lists = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(-8, 8).map(lambda n: n / 4), max_size=10)


def fused_pair(
    dense: dict[str, float], sparse: dict[str, float], k: int = 1000, depth: int = FUSION_DEPTH
) -> list[Hit]:
    """Fuse the lists of one query, as arrays."""
    passages, numbers = Passages.numbered(pa.array([*dense, *sparse], pa.large_string()))
    lists = [
        ranked_hits(passages, 1, (np.zeros(len(own), int), own, np.array([*scores.values()], float)))
        for own, scores in ((numbers[: len(dense)], dense), (numbers[len(dense) :], sparse))
    ]
    return fused(lists, k, depth=depth)[0]


def hybrid_reference(dense: dict[str, float], sparse: dict[str, float], k: int, depth: int) -> list[tuple[str, float]]:
    """Eq. 4, written out with plain sorting."""

    def scaled(scores: dict[str, float]) -> dict[str, float]:
        kept = sorted(scores, key=lambda i: (-scores[i], i))[:depth]
        if not kept:
            return {}
        low, high = scores[kept[-1]], scores[kept[0]]
        return {i: (scores[i] - low) / (high - low) if high > low else 0.0 for i in kept}

    d, s = scaled(dense), scaled(sparse)
    fused = {i: 0.5 * d.get(i, 0.0) + 0.5 * s.get(i, 0.0) for i in {*d, *s}}
    return sorted(fused.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


@settings(deadline=None)
@given(dense=lists, sparse=lists, k=st.integers(1, 12), depth=st.integers(1, 12))
def test_equals_the_reference(dense: dict[str, float], sparse: dict[str, float], k: int, depth: int) -> None:
    assert fused_pair(dense, sparse, k, depth) == hybrid_reference(dense, sparse, k, depth)


def test_hand_computed() -> None:
    dense = {"a": 0.9, "b": 0.7, "c": 0.5}
    sparse = {"b": 30.0, "d": 10.0}
    found = dict(fused_pair(dense, sparse))
    assert found == pytest.approx({"b": 0.75, "a": 0.5, "c": 0.0, "d": 0.0})
    assert list(found) == ["b", "a", "c", "d"]


def counted(scores: dict[str, float], by: Fusion) -> dict[str, float]:
    """What the passages of a list count, written out."""
    order = sorted(scores, key=lambda i: (-scores[i], i))
    if by == "reciprocal-rank":
        return {i: 1 / (60 + rank) for rank, i in enumerate(order, start=1)}
    values = [Fraction(scores[i]) for i in order]
    mean = sum(values) / max(1, len(values))
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values))
    spread = float(values[0] - values[-1]) if by == "min-max" and values else math.sqrt(variance)
    if by == "linear":
        spread = 1.0
    return {i: (scores[i] - scores[order[-1]]) / spread if spread else 0.0 for i in order}


@settings(deadline=None)
@given(
    found=st.lists(lists, min_size=1, max_size=4),
    by=st.sampled_from(get_args(Fusion)),
    weights=st.lists(st.integers(1, 5), min_size=4, max_size=4),
)
def test_any_number_of_lists_and_weights(found: list[dict[str, float]], by: Fusion, weights: list[int]) -> None:
    parts = [Run.of({"empty": {}, "q": scores}).hits for scores in found]
    fused_hits = fused(Hits.numbered_alike(parts), by=by, weights=weights[: len(found)])
    assert fused_hits[0] == []
    expected: dict[str, float] = {}
    for scores, weight in zip(found, weights, strict=False):
        for passage, value in counted(scores, by).items():
            expected[passage] = expected.get(passage, 0.0) + weight / sum(weights[: len(found)]) * value
    assert dict(fused_hits[1]) == pytest.approx(expected)
    assert [score for _, score in fused_hits[1]] == sorted((score for _, score in fused_hits[1]), reverse=True)


def test_the_order_of_sums_does_not_depend_on_other_passages() -> None:
    scores = [{"m": 0.1, "n": 0.0, "o": 1.0}, {"m": 0.7, "n": 0.0, "o": 1.0}, {"m": 0.3, "n": 0.0, "o": 1.0}]
    few = fused(Hits.numbered_alike([Run.of({"q": own}).hits for own in scores]))
    more = [own | {f"{place}{i}": 0.5 for i in range(300)} for place, own in enumerate(scores)]
    many = fused(Hits.numbered_alike([Run.of({"q": own}).hits for own in more]))
    assert dict(many[0])["m"] == dict(few[0])["m"]


def test_a_mode_is_ranked_from_its_lists() -> None:
    both = Hits.of([[("a", 3.0), ("b", 1.0)], [("b", 2.0), ("c", 1.0)]])
    dense, sparse = both[:1], both[1:]
    assert ranked("dense", {"dense": dense}, 1) == [[("a", 3.0)]]
    assert ranked("hybrid", {"dense": dense, "sparse": sparse}, 3) == [[("a", 0.5), ("b", 0.5), ("c", 0.0)]]
    assert ranked("sparse+bm25", {"sparse": sparse, "bm25": dense}, 1) == [[("a", 0.5)]]
    (three,) = ranked("dense+sparse+bm25", {"dense": dense, "sparse": sparse, "bm25": sparse}, 3)
    assert dict(three) == pytest.approx({"b": 2 / 3, "a": 1 / 3, "c": 0.0})


def test_weighted_sums_add_dense_scores_and_shares_of_the_highest_bm25_score() -> None:
    both = Hits.of([[("a", 0.5), ("b", 0.25), ("c", -0.125)], [("b", 8.0), ("c", 4.0)]])
    lists: dict[ListName, Hits] = {"dense": both[:1], "bm25": both[1:]}
    expected = [("a", 0.5), ("b", 0.5), ("c", 0.0)]
    assert ranked("dense+0.25bm25", lists, 3) == [expected], "a passage without a word of the query has 0 of BM25"
    assert ranked("dense+0.25bm25", lists, 2) == [expected[:2]]
    # A passage that a full list lacks has its last score at most.
    full = Hits.of([[("a", 0.5), ("b", 0.25)], [("c", 4.0), ("d", 3.0)]])
    found = ranked("dense+bm25", {"dense": full[:1], "bm25": full[1:]}, 4, depth=2)
    assert found == [[("a", 0.5), ("c", 0.5), ("b", 0.0), ("d", 0.0)]], "without weights: min-max"
    found = ranked("dense+2bm25", {"dense": full[:1], "bm25": full[1:]}, 4, depth=2)
    assert found == [[("c", 2.25), ("a", 2.0), ("b", 1.75), ("d", 1.75)]]


@pytest.mark.parametrize("mode", ["dense+0.25bm25", "dense+0.1sparse+0.25bm25", "sparse+2bm25"])
def test_a_longer_query_gives_its_words_no_more_weight(mode: str) -> None:
    """BM25 and sparse scores grow with the number of words; a query whose words are repeated keeps its ranking."""
    dense = Hits.of([[("a", 0.5), ("b", 0.45), ("c", 0.3)]])
    words = Hits.of([[("c", 3.0), ("b", 2.5), ("a", 1.0)]])
    longer = replace(words, scores_F=words.scores_F * 16)
    hits = [
        ranked(mode, {"dense": numbered, "sparse": alike, "bm25": alike}, 3)
        for numbered, alike in (Hits.numbered_alike([dense, each]) for each in (words, longer))
    ]
    assert hits[0] == hits[1]
