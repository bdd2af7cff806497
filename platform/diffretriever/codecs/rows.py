"""Rows of vectors and passages for codecs: checked, made unit, cut into blocks, averaged over queries.

Legend: M vectors, H hidden size, Q queries, P passages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK = 8192
"""Vectors of one step: few enough that what is computed from them stays in a cache."""
SHORTEST = np.float32(1e-12)
"""Vectors shorter than this are left as they are when others are made as long as 1."""


def checked(vectors_MH: np.ndarray, hidden_size: int) -> np.ndarray:
    """Return the vectors as float32, or raise `ValueError` if they are no vectors for a codec of this hidden size."""
    if vectors_MH.ndim != 2 or vectors_MH.shape[1] != hidden_size:
        raise ValueError(
            f"the codec is for vectors of {hidden_size} dimensions, these have shape {list(vectors_MH.shape)}: "
            "train a codec on vectors of the same retriever"
        )
    vectors_MH = np.ascontiguousarray(vectors_MH, np.float32)
    if not np.isfinite(vectors_MH).all():
        raise ValueError("a vector holds NaN or infinity: encode its text again in float32")
    return vectors_MH


def unit(vectors_MH: np.ndarray) -> np.ndarray:
    """Return float32 [M, H] made as long as 1; each row's bits depend on that row alone."""
    lengths_M1 = np.linalg.norm(vectors_MH, axis=1, keepdims=True)
    made: np.ndarray = vectors_MH / np.maximum(lengths_M1, SHORTEST)
    return made


def slices(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Cut so many rows into runs of at most `size`."""
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))


def passage_blocks(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut passages into runs of at most `BLOCK` vectors, or of one passage that has more."""
    first = 0
    while first < len(offsets) - 1:
        fitting = int(np.searchsorted(offsets, offsets[first] + BLOCK, side="right")) - 1
        last = max(first + 1, fitting)
        yield first, last
        first = last


def mean_per_query(best_PM: np.ndarray, query_offsets: np.ndarray) -> np.ndarray:
    """Return float32 [Q, P]: the mean of each query's columns of float32 [P, M]; 0 for a query that owns none."""
    counts_Q = np.diff(query_offsets)
    filled = np.flatnonzero(counts_Q)
    scores_QP = np.zeros((len(counts_Q), len(best_PM)), np.float32)
    if len(filled):
        sums_PQ = np.add.reduceat(best_PM, query_offsets[filled], axis=1)
        scores_QP[filled] = (sums_PQ / counts_Q[filled].astype(np.float32)).T
    return scores_QP
