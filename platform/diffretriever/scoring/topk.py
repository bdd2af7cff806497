"""The ranking rule of the platform: score descending, then passage id ascending (by code point).

Legend: Q queries, P passages of one batch, C candidates of one query.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from diffretriever.ragged import offsets_of
from diffretriever.scoring.hits import Hit, Hits, Passages


def top_k(scores_P: np.ndarray, ids: Sequence[str], k: int) -> list[Hit]:
    """Return the k best passages of one query as (id, score), best first; a score of -inf is never returned.

    Args:
        scores_P: floating [P].
        ids: P passage ids, no two equal.
        k: at least 1.

    Raises:
        ValueError: a score is NaN, or k is below 1.
    """
    passages, numbers_P = Passages.numbered(pa.array(ids, pa.large_string()))
    ranking = TopK(1, k, passages)
    ranking.add_for(0, np.asarray(scores_P), numbers_P)
    return ranking.results()[0]


def ranked_hits(passages: Passages, n_queries: int, columns: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Hits:
    """Rank all passages of each query; a score of -inf is left out.

    Args:
        passages: what the passages' numbers stand for.
        n_queries: Q.
        columns: in any order, the number of the query of each hit (integers [F]), its passage's number (int32 [F]),
            and its score (float64 [F]).

    Raises:
        ValueError: a score is NaN.
    """
    queries_F, numbers_F, scores_F = columns
    _refuse_nan(passages, scores_F, numbers_F, queries_F)
    order = np.lexsort((numbers_F, -scores_F, queries_F))
    order = order[scores_F[order] > -np.inf]
    offsets = np.searchsorted(queries_F[order], np.arange(n_queries + 1))
    return Hits(passages, offsets, numbers_F[order], scores_F[order])


class TopK:
    """The k best passages of each of Q queries, from scores that arrive in batches of passages.

    Exactly what sorting all scores at once would give, ties included, in the memory of k passages a query.
    """

    def __init__(self, n_queries: int, k: int, passages: Passages, *, only_positive: bool = False) -> None:
        """Start without candidates.

        Args:
            n_queries: Q.
            k: passages to keep for each query, at least 1.
            passages: what the passages' numbers stand for.
            only_positive: drop scores of 0 and less; for sparse scores, where 0 says that no term is shared.

        Raises:
            ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one passage")
        self.k = k
        self._passages = passages
        self._floor = 0.0 if only_positive else -np.inf
        self._scores = [np.empty(0) for _ in range(n_queries)]
        self._numbers = [np.empty(0, np.int32) for _ in range(n_queries)]
        self._thresholds_Q = np.full(n_queries, -np.inf)

    def add(self, scores_QP: np.ndarray, numbers_P: np.ndarray) -> None:
        """Take in a batch of P passages; no passage may come twice.

        Args:
            scores_QP: floating [Q, P].
            numbers_P: int32 [P], the passages' numbers.

        Raises:
            ValueError: a score is NaN.
        """
        assert scores_QP.shape == (len(self._scores), len(numbers_P)), "one row a query, one column a passage"
        for query in np.flatnonzero(np.isnan(scores_QP).any(axis=1)):
            _refuse_nan(self._passages, scores_QP[query], numbers_P, np.full(len(numbers_P), query))
        # Scores equal to the k-th best survive: their ids decide.
        survives_QP = (scores_QP >= self._thresholds_Q[:, None]) & (scores_QP > self._floor)
        for query in np.flatnonzero(survives_QP.any(axis=1)):
            survivors_C = np.flatnonzero(survives_QP[query])
            self._merge(int(query), scores_QP[query, survivors_C], numbers_P[survivors_C])

    def add_for(self, query: int, scores_C: np.ndarray, numbers_C: np.ndarray) -> None:
        """Take in passages of one query alone: floating [C] and their numbers, int32 [C]."""
        if np.isnan(scores_C).any():
            _refuse_nan(self._passages, scores_C, numbers_C, np.full(len(numbers_C), query))
        survivors_C = np.flatnonzero((scores_C >= self._thresholds_Q[query]) & (scores_C > self._floor))
        if len(survivors_C):
            self._merge(query, scores_C[survivors_C], numbers_C[survivors_C])

    def threshold(self, query: int) -> float:
        """Return the score that a passage must reach to be kept now; -inf while there is room."""
        return float(self._thresholds_Q[query])

    def results(self) -> Hits:
        """Return each query's passages, best first."""
        orders = [_ranking(*pair) for pair in zip(self._scores, self._numbers, strict=True)]
        numbers = [own_C[order_C] for own_C, order_C in zip(self._numbers, orders, strict=True)]
        scores = [own_C[order_C] for own_C, order_C in zip(self._scores, orders, strict=True)]
        return Hits(
            self._passages,
            offsets_of([len(order_C) for order_C in orders]),
            np.concatenate([*numbers, np.empty(0, np.int32)]),
            np.concatenate([*scores, np.empty(0)]),
        )

    def _merge(self, query: int, scores_C: np.ndarray, numbers_C: np.ndarray) -> None:
        scores_C = np.concatenate([self._scores[query], scores_C])
        numbers_C = np.concatenate([self._numbers[query], numbers_C])
        if len(scores_C) > self.k:
            kept = _best(scores_C, numbers_C, self.k)
            scores_C, numbers_C = scores_C[kept], numbers_C[kept]
        if len(scores_C) == self.k:
            self._thresholds_Q[query] = scores_C.min()
        self._scores[query], self._numbers[query] = scores_C, numbers_C


def _best(scores_C: np.ndarray, numbers_C: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k best of more than k candidates, in no order."""
    boundary = np.partition(scores_C, len(scores_C) - k)[len(scores_C) - k]
    above = np.flatnonzero(scores_C > boundary)
    tied = np.flatnonzero(scores_C == boundary)
    room = k - len(above)
    if room < len(tied):
        tied = tied[np.argpartition(numbers_C[tied], room)[:room]]
    return np.concatenate([above, tied])


def _ranking(scores_C: np.ndarray, numbers_C: np.ndarray) -> np.ndarray:
    """Return the positions of candidates, best first."""
    order = np.argsort(-scores_C)
    ranked_C = scores_C[order]
    if (ranked_C[1:] == ranked_C[:-1]).any():
        return np.lexsort((numbers_C, -scores_C))
    return order


def _refuse_nan(passages: Passages, scores_C: np.ndarray, numbers_C: np.ndarray, queries_C: np.ndarray) -> None:
    wrong = np.flatnonzero(np.isnan(scores_C))
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"the score of passage '{passages.ids[numbers_C[first]]}' for query number {queries_C[first]} is NaN: "
            "look for NaN in the stored vectors, or encode again in float32"
        )
