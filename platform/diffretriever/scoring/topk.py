"""The ranking rule of the platform: score descending, then passage id ascending (by code point).

Legend: Q queries, P passages of one batch, C candidates of one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Hit: TypeAlias = tuple[str, float]
"""A passage id and its score."""
Hits: TypeAlias = list[list[Hit]]
"""Each query's passages, best first."""


def top_k(scores_P: np.ndarray, ids: Sequence[str], k: int) -> list[Hit]:
    """Return the k best passages as (id, score), best first; a score of -inf is never returned.

    Args:
        scores_P: floating [P].
        ids: P passage ids, no two equal.
        k: at least 1.

    Raises:
        ValueError: a score is NaN, or k is below 1.
    """
    ranking = TopK(1, k)
    ranking.add(np.asarray(scores_P)[None, :], ids)
    return ranking.results()[0]


class TopK:
    """The k best passages of each of Q queries, from scores that arrive in batches of passages.

    Exactly what sorting all scores at once would give, ties included, in the memory of k passages a query.
    """

    def __init__(self, n_queries: int, k: int, *, only_positive: bool = False) -> None:
        """Start without candidates.

        Args:
            n_queries: Q.
            k: passages to keep for each query, at least 1.
            only_positive: drop scores of 0 and less; for sparse scores, where 0 says that no term is shared.

        Raises:
            ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one passage")
        self.k = k
        self._floor = 0.0 if only_positive else -np.inf
        self._scores = [np.empty(0) for _ in range(n_queries)]
        self._ids = [np.empty(0, dtype=object) for _ in range(n_queries)]
        self._thresholds_Q = np.full(n_queries, -np.inf)

    def add(self, scores_QP: np.ndarray, ids: Sequence[str]) -> None:
        """Take in a batch of P passages; no passage may come twice.

        Args:
            scores_QP: floating [Q, P].
            ids: P passage ids.

        Raises:
            ValueError: a score is NaN.
        """
        assert scores_QP.shape == (len(self._scores), len(ids)), "one row a query, one column a passage"
        for query in np.flatnonzero(np.isnan(scores_QP).any(axis=1)):
            self._check(scores_QP[query], ids, int(query))
        # Scores equal to the k-th best survive: their ids decide.
        survives_QP = (scores_QP >= self._thresholds_Q[:, None]) & (scores_QP > self._floor)
        ids_P = np.array(ids, dtype=object)
        for query in np.flatnonzero(survives_QP.any(axis=1)):
            survivors_C = np.flatnonzero(survives_QP[query])
            self._merge(int(query), scores_QP[query, survivors_C], ids_P[survivors_C])

    def add_for(self, query: int, scores_C: np.ndarray, ids_C: np.ndarray) -> None:
        """Take in passages of one query alone: floating [C] and their ids, an object array [C]."""
        self._check(scores_C, ids_C, query)
        survivors_C = np.flatnonzero((scores_C >= self._thresholds_Q[query]) & (scores_C > self._floor))
        if len(survivors_C):
            self._merge(query, scores_C[survivors_C], ids_C[survivors_C])

    def threshold(self, query: int) -> float:
        """Return the score that a passage must reach to be kept now; -inf while there is room."""
        return float(self._thresholds_Q[query])

    def results(self) -> Hits:
        """Return for each query its passages as (id, score), best first."""
        return [_ranked(scores, ids) for scores, ids in zip(self._scores, self._ids, strict=True)]

    @staticmethod
    def _check(scores_C: np.ndarray, ids_C: Sequence[str] | np.ndarray, query: int) -> None:
        wrong = np.flatnonzero(np.isnan(scores_C))
        if len(wrong):
            raise ValueError(
                f"the score of passage '{ids_C[wrong[0]]}' for query number {query} is NaN: "
                "look for NaN in the stored vectors, or encode again in float32"
            )

    def _merge(self, query: int, scores_C: np.ndarray, ids_C: np.ndarray) -> None:
        scores_C = np.concatenate([self._scores[query], scores_C])
        ids_C = np.concatenate([self._ids[query], ids_C])
        if len(scores_C) > self.k:
            kept = _best(scores_C, ids_C, self.k)
            scores_C, ids_C = scores_C[kept], ids_C[kept]
        if len(scores_C) == self.k:
            self._thresholds_Q[query] = scores_C.min()
        self._scores[query], self._ids[query] = scores_C, ids_C


def _best(scores_C: np.ndarray, ids_C: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k best of more than k candidates, in no order."""
    boundary = np.partition(scores_C, len(scores_C) - k)[len(scores_C) - k]
    above = np.flatnonzero(scores_C > boundary)
    tied = sorted(np.flatnonzero(scores_C == boundary), key=ids_C.__getitem__)
    return np.concatenate([above, np.array(tied[: k - len(above)], dtype=np.int64)])


def _ranked(scores_C: np.ndarray, ids_C: np.ndarray) -> list[Hit]:
    pairs = zip(ids_C.tolist(), scores_C.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
