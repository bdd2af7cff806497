import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.vectors.sparse import (
    idf_roots,
    impact_matrix,
    sparse_scores,
)

bags = st.lists(
    st.dictionaries(st.integers(0, 9), st.integers(1, 8).map(lambda n: n / 4), max_size=5),
    min_size=1,
    max_size=4,
)


def matrix(texts: list[dict[int, float]]) -> scipy.sparse.csr_array:
    pairs = [pair for text in texts for pair in sorted(text.items())]
    ids, weights = np.array([i for i, _ in pairs], dtype=np.int32), np.array([w for _, w in pairs])
    return impact_matrix(ids, weights, np.cumsum([0, *map(len, texts)]), vocab_size=10)


@settings(deadline=None)
@given(queries=bags, passages=bags)
def test_sparse_scores_equal_the_inner_product_of_shared_tokens(
    queries: list[dict[int, float]], passages: list[dict[int, float]]
) -> None:
    scores = sparse_scores(matrix(queries), matrix(passages))
    expected = [[sum(w * p.get(i, 0.0) for i, w in q.items()) for p in passages] for q in queries]
    assert scores.dtype == np.float32
    assert scores.toarray().tolist() == expected
    assert scores.nnz == np.count_nonzero(expected)


def test_ids_outside_the_vocabulary_are_rejected() -> None:
    with pytest.raises(ValueError, match="token id 10 is outside a vocabulary of 10"):
        impact_matrix(np.array([3, 10]), np.ones(2), np.array([0, 2]), vocab_size=10)
    with pytest.raises(ValueError, match="token id -1"):
        impact_matrix(np.array([-1, 3]), np.ones(2), np.array([0, 2]), vocab_size=10)


def test_idf_roots_by_hand() -> None:
    texts = [np.array([0, 1]), np.array([0]), np.array([0, 3])]
    found_V = idf_roots(texts, 5)
    idf = {n: math.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (0, 1, 3)}
    mean = (3 * idf[3] + 2 * idf[1]) / 5
    expected = [math.sqrt(idf[n] / mean) for n in (3, 1, 0, 1, 0)]
    assert found_V.dtype == np.float32
    np.testing.assert_allclose(found_V, expected, rtol=1e-6)
