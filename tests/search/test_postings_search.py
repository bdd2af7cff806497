from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffretriever.scoring.hits import Passages, TopK
from diffretriever.search.sparse.kernels import BLOCK_ROWS
from diffretriever.search.sparse.segment import Impacts, PostingsSegment
from diffretriever.search.sparse.segment_search import search, search_many
from tests.search.product import Text, all_scores, expected, found, impacts, numbered, slices

VOCAB = 12
_names = count()


def build(folder: Path, passages: Impacts, sizes: Sequence[int], vocab: int = VOCAB) -> list[PostingsSegment]:
    return [PostingsSegment.build(folder / f"s{next(_names)}", [part], vocab) for part in slices(passages, sizes)]


coarse = st.integers(1, 6).map(lambda n: n / 4)
# From the smallest float32 on: products underflow, sums round.
wild = st.floats(2.0**-149, 2.0**60, width=32)
log_like = st.floats(2.0**-10, 4.0, width=32)


def bags(weights: st.SearchStrategy[float], most: int) -> st.SearchStrategy[list[Text]]:
    return st.lists(st.dictionaries(st.integers(0, VOCAB - 1), weights, max_size=8), min_size=1, max_size=most)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), weights=st.sampled_from([coarse, wild, log_like]))
def test_finds_what_the_product_finds(data: st.DataObject, weights: st.SearchStrategy[float], tmp_path: Path) -> None:
    texts = data.draw(bags(weights, 40))
    query = data.draw(bags(weights, 1))
    cut = data.draw(st.integers(0, len(texts)))
    k = data.draw(st.integers(1, 12))
    deleted = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    sizes = [cut, len(texts) - cut]
    segments = build(tmp_path, impacts(texts), sizes)
    scores = all_scores(impacts(query), impacts(texts), VOCAB)
    ids, query_weights, _ = impacts(query)
    assert found(search(segments, numbered(sizes), ids, query_weights, k)) == expected(scores, k)
    masked = search(segments, numbered(sizes, deleted), ids, query_weights, k)
    assert found(masked) == expected(scores, k, deleted)


def random_passages(n: int, vocab: int, seed: int) -> Impacts:
    """Passages of 3 to 12 different terms, small ids far more often than large ones."""
    rng = np.random.default_rng(seed)
    drawn = (vocab * rng.random((n, 12)) ** 4).astype(np.int32)
    drawn[np.arange(12) >= rng.integers(3, 13, n)[:, None]] = vocab
    drawn.sort(axis=1)
    keep = (np.diff(drawn, axis=1, prepend=-1) > 0) & (drawn < vocab)
    weights = np.log1p(rng.gamma(4, 2, keep.sum())).astype(np.float32)
    return drawn[keep], weights, np.concatenate([[0], np.cumsum(keep.sum(axis=1))])


@pytest.fixture(scope="module")
def large() -> Impacts:
    return random_passages(2 * BLOCK_ROWS + 30_000, 400, seed=5)


SIZES = [BLOCK_ROWS + 20_000, 1, 60_000, 15_535]
"""Of segments: more than a block, one passage, less than a block; `large` ends in the last."""


@pytest.fixture(scope="module")
def segments(large: Impacts, tmp_path_factory: pytest.TempPathFactory) -> list[PostingsSegment]:
    assert sum(SIZES) == len(large[2]) - 1
    return build(tmp_path_factory.mktemp("segments"), large, SIZES, 400)


@pytest.mark.parametrize("k", [1, 10, 1000, 200_000])
def test_many_blocks_and_segments(segments: list[PostingsSegment], large: Impacts, k: int) -> None:
    queries = random_passages(4, 400, seed=6)
    results = search_many(segments, numbered(SIZES), queries, k, threads=2)
    for query, result in zip(slices(queries, [1] * 4), results, strict=True):
        assert found(result) == expected(all_scores(query, large, 400), k)


def test_deleted_passages_make_room(segments: list[PostingsSegment], large: Impacts) -> None:
    query = random_passages(1, 400, seed=7)
    scores = all_scores(query, large, 400)
    deleted = np.zeros(len(scores), dtype=bool)
    deleted[expected(scores, 500)[0]] = True
    result = search(segments, numbered(SIZES, deleted), *query[:2], 50)
    assert found(result) == expected(scores, 50, deleted)
    assert not search(segments, numbered(SIZES, np.ones_like(deleted)), *query[:2], 50).scores.size


def test_ties_are_ranked_as_everywhere(tmp_path: Path) -> None:
    texts: list[Text] = [{3: 1.0 + i % 4} for i in range(100)]
    names = [f"p{(i * 37) % 100}" for i in range(100)]
    segments = build(tmp_path, impacts(texts), [30, 70])
    passages, numbers_P = Passages.numbered(pa.array(names, pa.large_string()))
    result = search(segments, np.split(numbers_P, [30]), np.array([3]), np.array([2.0]), 40)
    assert result.scores.tolist() == [8.0] * 25 + [6.0] * 15
    ranking = TopK(1, 40, passages, only_positive=True)
    ranking.add(all_scores(impacts([{3: 2.0}]), impacts(texts), VOCAB)[None, :], numbers_P)
    ids = passages.ids.take(pa.array(result.numbers)).to_pylist()
    assert list(zip(ids, result.scores.tolist(), strict=True)) == ranking.results()[0]


def test_the_first_of_equal_passages_are_found(tmp_path: Path) -> None:
    # More ties than a block has rows, and than there is room for.
    n = BLOCK_ROWS + 5000
    passages = (np.full(n, 2, np.int32), np.ones(n, np.float32), np.arange(n + 1))
    segments = build(tmp_path, passages, [n])
    for numbers in (np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int32)[::-1].copy()):
        result = search(segments, [numbers], np.array([2, 7]), np.array([0.5, 9.0]), 3)
        assert found(result) == ([0, 1, 2], [0.5] * 3)


def test_terms_count_in_the_order_and_as_often_as_they_are_given(tmp_path: Path) -> None:
    texts: list[Text] = [{1: 0.1, 2: 0.7, 3: 1e8}, {1: 0.3}]
    segments = build(tmp_path, impacts(texts), [2])
    for ids in ([3, 2, 1], [1, 2, 3], [2, 2, 1, 3, 1]):
        scores = [np.float32(0), np.float32(0)]
        for term in ids:
            scores = [score + np.float32(text.get(term, 0)) for score, text in zip(scores, texts, strict=True)]
        result = search(segments, numbered([2]), np.array(ids), np.ones(len(ids)), 2)
        assert result.scores.tolist() == sorted(map(float, scores), reverse=True)


@pytest.mark.parametrize(
    ("passage_weights", "rows"),
    [
        # In units of the smallest float32: products round to a whole number of them, and to nothing.
        ([1.4, 0.6], [0, 1]),
        ([0.4, 1.0], [1]),
        ([0.25, 0.5], []),
        ([1.0, 300.0, 0.1], [1]),
        ([2.0, 1.0, 1.4], [0]),
    ],
)
def test_products_that_underflow(passage_weights: list[float], rows: list[int], tmp_path: Path) -> None:
    passages = impacts([{0: weight * 2.0**-99} for weight in passage_weights])
    segments = build(tmp_path, passages, [len(passage_weights)])
    numbers = numbered([len(passage_weights)])
    result = search(segments, numbers, np.array([0]), np.array([2.0**-50]), 1)
    scores = all_scores(impacts([{0: 2.0**-50}]), passages, VOCAB)
    assert result.numbers.tolist() == rows[:1]
    assert found(result) == expected(scores, 1)
    everything = search(segments, numbers, np.array([0]), np.array([2.0**-50]), 9)
    assert found(everything) == expected(scores, 9)


def test_nothing_to_find(tmp_path: Path) -> None:
    segments = build(tmp_path, impacts([{1: 1.0}, {}, {2: 1.0}]), [3, 0])
    for ids in ([], [5], [0, 11]):
        result = search(segments, numbered([3, 0]), np.array(ids, np.int32), np.ones(len(ids), np.float32), 5)
        assert [len(part) for part in result] == [0, 0]
    assert not search([], [], np.array([1]), np.ones(1), 5).scores.size


@pytest.mark.parametrize(
    ("ids", "weights", "k", "message"),
    [
        ([1], [1.0], 0, "k is 0"),
        ([1, 12], [1.0, 1.0], 5, "token id 12 is outside a vocabulary of 12"),
        ([-1, 3], [1.0, 1.0], 5, "token id -1"),
        ([1], [0.0], 5, "above 0 and finite"),
        ([1], [np.nan], 5, "above 0 and finite"),
        ([1, 2], [3e38, 3e38], 5, "exceed float32"),
    ],
)
def test_queries_that_are_refused(ids: list[int], weights: list[float], k: int, message: str, tmp_path: Path) -> None:
    segments = build(tmp_path, impacts([{1: 1.0, 2: 1.0}]), [1])
    with pytest.raises(ValueError, match=message):
        search(segments, numbered([1]), np.array(ids), np.array(weights), k)


def test_segments_of_different_vocabularies_are_refused(tmp_path: Path) -> None:
    segments = [*build(tmp_path, impacts([{1: 1.0}]), [1]), *build(tmp_path, impacts([{1: 1.0}]), [1], vocab=5)]
    with pytest.raises(ValueError, match=r"\[5, 12\] tokens"):
        search(segments, numbered([1, 1]), np.array([1]), np.ones(1), 5)
