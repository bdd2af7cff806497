"""What benchmarks/sparse.py holds the inverted index against: scipy, by columns and as the exact search does today."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import scipy.sparse

from benchmarks._made_up_impacts import MadeUpImpacts
from diffretriever.scoring.sparse import impact_matrix, sparse_scores
from diffretriever.scoring.topk import TopK

Hits: TypeAlias = list[tuple[str, float]]
_ROWS = 16_384


def matrix(made: MadeUpImpacts) -> scipy.sparse.csr_array:
    """Return all passages, one a row."""
    return scipy.sparse.vstack([impact_matrix(*batch, made.vocab_size) for batch in made.batches()], format="csr")


def columns(by_term: scipy.sparse.csc_array, ids: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """Return the best scores, after a product of the query's columns and a partial sort."""
    scores = by_term[:, ids] @ weights
    best = np.argpartition(-scores, k)[:k]
    best = best[np.lexsort((best, -scores[best]))]
    return np.asarray(scores[best][scores[best] > 0])


def today(passages: scipy.sparse.csr_array, ids: np.ndarray, weights: np.ndarray, k: int) -> Hits:
    """Return the ranking of the exact search, by products of batches of rows; reading the batches is left out."""
    query = impact_matrix(ids, weights, np.array([0, len(ids)]), passages.shape[1])
    best = TopK(1, k, only_positive=True)
    for first in range(0, passages.shape[0], _ROWS):
        batch = passages[first : first + _ROWS]
        best.add(sparse_scores(query, batch).toarray(), [name(first + i) for i in range(batch.shape[0])])
    return best.results()[0]


def name(row: int) -> str:
    """Return an id that sorts as the rows do."""
    return f"{row:09d}"
