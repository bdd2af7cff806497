import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.vectors.hits import Passages, TopK

few_scores = st.sampled_from([-math.inf, -1.0, 0.0, 0.25, 0.5, 1.0, math.inf])
"""Few distinct values, so that ties at the boundary are the rule."""


def ranked(scores: list[float], ids: list[str], k: int, floor: float = -math.inf) -> list[tuple[str, float]]:
    pairs = [(i, s) for i, s in zip(ids, scores, strict=True) if s > floor]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]


@settings(deadline=None)
@given(
    ids=st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=30),
    k=st.integers(1, 8),
    data=st.data(),
    only_positive=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_top_k_of_batches_equals_one_sort(
    ids: list[str],
    k: int,
    data: st.DataObject,
    only_positive: bool,
    dtype: type[np.floating],
) -> None:
    row = st.lists(few_scores, min_size=len(ids), max_size=len(ids))
    scores = np.array(data.draw(st.lists(row, min_size=1, max_size=3)), dtype=dtype)
    step = data.draw(st.integers(1, len(ids)))
    passages, numbers_P = Passages.numbered(pa.array(ids, pa.large_string()))
    ranking = TopK(len(scores), k, passages, only_positive=only_positive)
    for start in range(0, len(ids), step):
        ranking.add(scores[:, start : start + step], numbers_P[start : start + step])
    floor = 0.0 if only_positive else -math.inf
    assert ranking.results() == [ranked(row.tolist(), ids, k, floor) for row in scores]


def test_nan_is_rejected_with_passage_and_query() -> None:
    passages, numbers_P = Passages.numbered(pa.array(["a", "b"], pa.large_string()))
    with pytest.raises(ValueError, match="passage 'b' for query number 1 is NaN"):
        TopK(2, 1, passages).add(np.array([[0.0, 0.0], [0.0, math.nan]]), numbers_P)
