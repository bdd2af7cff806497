"""The sample that a codec is trained on: fair, the same however the stream is cut, and small."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.index.rewrite import sample_vectors

STREAM = np.arange(10_000, dtype=np.float32)[:, None]


def blocks(*sizes: int) -> list[np.ndarray]:
    return np.split(STREAM, np.cumsum(sizes)) if sizes else [STREAM]


@pytest.mark.parametrize("size", [1, 50, 3000])
def test_as_many_as_asked_for_in_their_order(size: int) -> None:
    sample = sample_vectors(blocks(10, 0, 5000), size)
    assert len(sample) == size
    assert (np.diff(sample[:, 0]) > 0).all(), "in order, none twice"


def test_how_the_stream_is_cut_does_not_matter() -> None:
    whole = sample_vectors(blocks(), 300)
    for sizes in ([1] * 50, [299, 301, 4000], [9999]):
        assert np.array_equal(sample_vectors(blocks(*sizes), 300), whole)
    assert not np.array_equal(sample_vectors(blocks(), 300, seed=1), whole)
