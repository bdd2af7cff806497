"""Search of posting segments equals the matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffretriever.search.sparse.kernels import BLOCK_ROWS
from diffretriever.search.sparse.segment import DTYPES, Impacts, PostingsSegment, SegmentHits, search
from diffretriever.vectors.sparse import impact_matrix, sparse_scores

Text: TypeAlias = dict[int, float]
VOCAB = 12
TEXTS: list[Text] = [{2: 0.5, 7: 3.0}, {}, {2: 1.5}, {0: 0.1, 2: 1.0, 9: 2.0}]
SIZES = [BLOCK_ROWS + 20_000, 1, 60_000, 15_535]
"""Passages of segments: more than a block, one passage, less than a block."""


def impacts(texts: Sequence[Text]) -> Impacts:
    pairs = [pair for text in texts for pair in sorted(text.items())]
    ids = np.array([i for i, _ in pairs], dtype=np.int32)
    weights = np.array([w for _, w in pairs], dtype=np.float32)
    return ids, weights, np.cumsum([0, *map(len, texts)], dtype=np.int64)


def slices(passages: Impacts, sizes: Sequence[int]) -> Iterator[Impacts]:
    """Cut passages into groups of these sizes."""
    ids, weights, offsets = passages
    first = 0
    for size in sizes:
        own = offsets[first : first + size + 1]
        yield ids[own[0] : own[-1]], weights[own[0] : own[-1]], own - own[0]
        first += size


def random_passages(n: int, vocab: int, seed: int) -> Impacts:
    """Passages of 3 to 12 different terms, small ids far more often than large ones."""
    rng = np.random.default_rng(seed)
    drawn = (vocab * rng.random((n, 12)) ** 4).astype(np.int32)
    drawn[np.arange(12) >= rng.integers(3, 13, n)[:, None]] = vocab
    drawn.sort(axis=1)
    keep = (np.diff(drawn, axis=1, prepend=-1) > 0) & (drawn < vocab)
    weights = np.log1p(rng.gamma(4, 2, keep.sum())).astype(np.float32)
    return drawn[keep], weights, np.concatenate([[0], np.cumsum(keep.sum(axis=1))])


def build(folder: Path, passages: Impacts, sizes: Sequence[int], vocab: int = VOCAB) -> list[PostingsSegment]:
    return [PostingsSegment.build([part], vocab, folder) for part in slices(passages, sizes)]


def all_scores(query: Impacts, passages: Impacts, vocab: int = VOCAB) -> np.ndarray:
    return sparse_scores(impact_matrix(*query, vocab), impact_matrix(*passages, vocab)).toarray()[0]


def expected(scores: np.ndarray, k: int, deleted: np.ndarray | None = None) -> tuple[list[int], list[float]]:
    """Return the k best passages and their scores, by score and number."""
    live = scores > 0 if deleted is None else (scores > 0) & ~deleted
    ranked = np.lexsort((np.arange(len(scores)), -scores))
    ranked = ranked[live[ranked]][:k]
    return ranked.tolist(), scores[ranked].tolist()


def numbered(sizes: Sequence[int], deleted: np.ndarray | None = None) -> list[np.ndarray]:
    """Return the numbers of the passages of segments of these sizes, in order; -1 for deleted ones."""
    numbers = np.arange(sum(sizes), dtype=np.int32)
    if deleted is not None:
        numbers[deleted] = -1
    return np.split(numbers, np.cumsum(sizes)[:-1]) if len(sizes) else []


def lists(found: SegmentHits) -> tuple[list[int], list[float]]:
    return found.numbers.tolist(), found.scores.tolist()


def one(ids: Sequence[int], weights: Sequence[float] | None = None) -> Impacts:
    """A single query; without weights, each term counts once."""
    return np.array(ids, np.int64), np.array(weights or [1.0] * len(ids), np.float32), np.array([0, len(ids)])


def test_arrays_of_a_segment_equal_those_by_hand(tmp_path: Path) -> None:
    built = PostingsSegment.build([impacts(TEXTS)], 10, tmp_path)
    assert not list(tmp_path.iterdir()), "temporary files are removed"
    built.save(tmp_path)
    segment = PostingsSegment.open(tmp_path)
    assert (segment.passages, segment.vocab_size) == (4, 10)
    assert segment.terms_D.tolist() == [0, 2, 7, 9]
    assert segment.starts_DB.tolist() == [[0, 1], [1, 4], [4, 5], [5, 6]]
    assert segment.rows_P.tolist() == [3, 0, 2, 3, 0, 3]
    assert segment.weights_P.tolist() == np.array([0.1, 0.5, 1.5, 1, 3, 2], np.float32).tolist()
    assert not segment.weights_P.flags.writeable


@pytest.mark.parametrize(
    ("ids", "weights", "offsets", "message"),
    [
        ([3, 10], [1, 1], [0, 2], "token id 10 is outside a vocabulary of 10"),
        ([-1, 3], [1, 1], [0, 2], "token id -1"),
        ([3, 2**32 + 4], [1, 1], [0, 2], "token id 4294967300"),
        ([3, 4], [1, 0], [0, 2], "above 0 and finite"),
        ([3, 4], [1, np.inf], [0, 2], "above 0 and finite"),
        ([3, 4], [np.nan, 1], [0, 2], "above 0 and finite"),
        ([3, 2, 5, 4], [1, 1, 1, 1], [0, 1, 1, 2, 4], "passage number 7 do not ascend"),
        ([3, 3], [1, 1], [0, 2], "passage number 4 do not ascend"),
    ],
)
def test_invalid_impacts_are_rejected(
    ids: list[int], weights: list[float], offsets: list[int], message: str, tmp_path: Path
) -> None:
    wrong = (np.array(ids), np.array(weights), np.array(offsets))
    with pytest.raises(ValueError, match=message):
        PostingsSegment.build([impacts(TEXTS), wrong], 10, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("shape", [4 + BLOCK_ROWS, 10]),
        ("starts", [0, 1, 1, 4, 4, 5, 5, 7]),
        ("starts", [0, 2, 1, 4, 4, 5, 5, 6]),
        ("rows", [3, 0, 2, 3, 0]),
    ],
)
def test_inconsistent_arrays_are_rejected(name: str, array: list[int], tmp_path: Path) -> None:
    PostingsSegment.build([impacts(TEXTS)], 10, tmp_path).save(tmp_path)
    np.array(array, DTYPES[name]).tofile(tmp_path / f"{name}.bin")
    with pytest.raises(ValueError, match=r"do not fit together|cannot reshape"):
        PostingsSegment.open(tmp_path)


# From the smallest float32 on: products underflow, sums round.
WEIGHTS = [
    st.integers(1, 6).map(lambda n: n / 4),
    st.floats(2.0**-149, 2.0**60, width=32),
    st.floats(0.125, 4, width=32),
]


def bags(weights: st.SearchStrategy[float], most: int) -> st.SearchStrategy[list[Text]]:
    return st.lists(st.dictionaries(st.integers(0, VOCAB - 1), weights, max_size=8), min_size=1, max_size=most)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), weights=st.sampled_from(WEIGHTS), k=st.integers(1, 12))
def test_search_equals_the_matrix_product(
    data: st.DataObject, weights: st.SearchStrategy[float], k: int, tmp_path: Path
) -> None:
    texts, query = data.draw(bags(weights, 40)), impacts(data.draw(bags(weights, 1)))
    cut = data.draw(st.integers(0, len(texts)))
    deleted = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    sizes = [cut, len(texts) - cut]
    segments, scores = build(tmp_path, impacts(texts), sizes), all_scores(query, impacts(texts))
    assert lists(search(segments, numbered(sizes), query, k)[0]) == expected(scores, k)
    assert lists(search(segments, numbered(sizes, deleted), query, k)[0]) == expected(scores, k, deleted)


@pytest.fixture(scope="module")
def large() -> Impacts:
    return random_passages(sum(SIZES), 400, seed=5)


@pytest.fixture(scope="module")
def segments(large: Impacts, tmp_path_factory: pytest.TempPathFactory) -> list[PostingsSegment]:
    return build(tmp_path_factory.mktemp("segments"), large, SIZES, 400)


@pytest.mark.parametrize("k", [1, 10, 1000, 200_000])
def test_search_of_many_blocks_and_segments_equals_the_matrix_product(
    segments: list[PostingsSegment], large: Impacts, k: int
) -> None:
    queries = random_passages(4, 400, seed=6)
    results = search(segments, numbered(SIZES), queries, k, threads=2)
    for query, result in zip(slices(queries, [1] * 4), results, strict=True):
        assert lists(result) == expected(all_scores(query, large, 400), k)


def test_ties_are_ranked_by_passage_number(tmp_path: Path) -> None:
    # More ties than a block has rows, and than a pool of keys has room for.
    n = BLOCK_ROWS + 5000
    built = build(tmp_path, (np.full(n, 2, np.int32), np.ones(n, np.float32), np.arange(n + 1)), [n])
    for numbers in (np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int32)[::-1].copy()):
        (result,) = search(built, [numbers], one([2, 7], [0.5, 9.0]), 3)
        assert lists(result) == ([0, 1, 2], [0.5] * 3)


@pytest.mark.parametrize(
    ("ids", "weights", "k", "message"), [([1], [1], 0, "k is 0"), ([1, 2], [3e38, 3e38], 5, "float32")]
)
def test_invalid_queries_of_segments_are_rejected(
    ids: list[int], weights: list[float], k: int, message: str, tmp_path: Path
) -> None:
    built = build(tmp_path, impacts([{1: 1.0, 2: 1.0}]), [1])
    with pytest.raises(ValueError, match=message):
        search(built, numbered([1]), one(ids, weights), k)
