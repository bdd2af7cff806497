"""Result lists as arrays, ranked by descending score, then ascending passage id.

A passage's number is the rank of its id among all ids of an index version, by code point. Ties are broken by comparing
numbers, and ids are looked up once, at the end.

Legend: Q queries, P passages of an index or a batch, F hits of all queries, C candidates of one query, N input ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.vectors.representations import offsets_of, rows_of

Hit: TypeAlias = tuple[str, float]
"""A passage id and its score."""

NO_NUMBER = -1
"""Number of an unknown or deleted passage."""


@dataclass(frozen=True, eq=False)
class Passages:
    """Maps passage numbers to ids and table rows.

    Attributes:
        ids: P unique passage ids, ascending by code point.
        rows_P: int64 [P], row of each passage in the table of its index version; None without an index.
    """

    ids: pa.LargeStringArray
    rows_P: np.ndarray | None = None

    @classmethod
    def numbered(cls, ids: pa.Array | pa.ChunkedArray) -> tuple[Self, np.ndarray]:
        """Number ids, which may repeat; return the passages and each id's number, int32 [N]."""
        coded = ids if pa.types.is_dictionary(ids.type) else pc.dictionary_encode(ids)
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.unify_dictionaries().combine_chunks()
        distinct = coded.dictionary.cast(pa.large_string())
        # Arrow sorts by UTF-8 bytes, which is code point order.
        order_P = pc.sort_indices(distinct).to_numpy()
        numbers_P = np.empty(len(order_P), np.int32)
        numbers_P[order_P] = np.arange(len(order_P), dtype=np.int32)
        return cls(distinct.take(pa.array(order_P))), numbers_P[coded.indices.to_numpy()]

    def __len__(self) -> int:
        return len(self.ids)

    def numbers_of(self, ids: Sequence[str]) -> np.ndarray:
        """Return the number of each id, int32 [N]; `NO_NUMBER` for unknown ids. Ids must be unique."""
        numbers_N = np.full(len(ids), NO_NUMBER, np.int32)
        # Hashing the few requested ids is faster than hashing all ids.
        positions_P = pc.index_in(self.ids, value_set=pa.array(ids, pa.large_string()))
        known = np.flatnonzero(positions_P.is_valid().to_numpy(zero_copy_only=False))
        numbers_N[positions_P.drop_null().to_numpy()] = known
        return numbers_N


@dataclass(frozen=True, eq=False)
class Hits(Sequence[list[Hit]]):
    """The result lists of Q queries, best first; `hits[i]` is query i's list of (id, score), `hits[i:j]` is `Hits`.

    Attributes:
        passages: maps numbers to ids.
        offsets: int64 [Q + 1]; query i owns the hits offsets[i] to offsets[i + 1].
        numbers_F: int32 [F], passage numbers.
        scores_F: float64 [F].
    """

    passages: Passages
    offsets: np.ndarray
    numbers_F: np.ndarray
    scores_F: np.ndarray

    @classmethod
    def of(cls, lists: Iterable[Sequence[Hit]]) -> Self:
        """Convert lists of (id, score) to hits, in the same order."""
        result_lists = list(lists)
        ids = pa.array([passage for hits in result_lists for passage, _ in hits], pa.large_string())
        scores_F = np.array([score for hits in result_lists for _, score in hits], np.float64)
        passages, numbers_F = Passages.numbered(ids)
        return cls(passages, offsets_of([len(hits) for hits in result_lists]), numbers_F, scores_F)

    @classmethod
    def numbered_alike(cls, parts: Sequence[Self]) -> list[Self]:
        """Renumber the hits of one or more parts, so that a passage has the same number in all parts."""
        ids = pa.chunked_array([part.passages.ids for part in parts], pa.large_string())
        passages, numbers = Passages.numbered(ids)
        part_numbers = np.split(numbers, np.cumsum([len(part.passages) for part in parts])[:-1])
        return [
            cls(passages, part.offsets, numbers_P[part.numbers_F], part.scores_F)
            for part, numbers_P in zip(parts, part_numbers, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, position: int) -> list[Hit]: ...

    @overload
    def __getitem__(self, position: slice) -> Hits: ...

    def __getitem__(self, position: int | slice) -> list[Hit] | Hits:
        """Return the hits of one query, or of a slice of queries."""
        if isinstance(position, slice):
            start, stop, step = position.indices(len(self))
            assert step == 1, "slices of hits have step 1"
            return self._of_queries(start, max(start, stop))
        query = range(len(self))[position]
        hits = self._of_queries(query, query + 1)
        return list(zip(hits.ids().to_pylist(), hits.scores_F.tolist(), strict=True))

    def __iter__(self) -> Iterator[list[Hit]]:
        pairs = list(zip(self.names(), self.scores_F.tolist(), strict=True))
        ends = self.offsets.tolist()
        return (pairs[start:end] for start, end in pairwise(ends))

    def __eq__(self, other: object) -> bool:
        """Compare ids and scores with other hits, or with a list of lists."""
        if isinstance(other, list):
            return list(self) == other
        if not isinstance(other, Hits):
            return NotImplemented
        same = np.array_equal(self.offsets, other.offsets) and np.array_equal(self.scores_F, other.scores_F)
        return same and bool(self.ids().equals(other.ids()))

    __hash__ = None  # type: ignore[assignment]

    @property
    def counts_Q(self) -> np.ndarray:  # noqa: N802 (an array)
        """int64 [Q], the number of hits of each query."""
        counts_Q: np.ndarray = self.offsets[1:] - self.offsets[:-1]
        return counts_Q

    def ids(self) -> pa.LargeStringArray:
        """Return the id of every hit, [F]."""
        return self.passages.ids.take(pa.array(self.numbers_F))

    def names(self) -> list[str]:
        """Return the id of every hit as a Python string."""
        if len(self.numbers_F) < len(self.passages):
            return list(self.ids().to_pylist())
        # Converts each distinct id once.
        names: list[str] = self.passages.ids.to_pylist()
        return [names[number] for number in self.numbers_F.tolist()]

    def rows(self) -> np.ndarray:
        """Return the table row of every hit, int64 [F]."""
        assert self.passages.rows_P is not None, "the hits come from an index"
        rows_F: np.ndarray = self.passages.rows_P[self.numbers_F]
        return rows_F

    def queries(self) -> np.ndarray:
        """Return the query number of every hit, int64 [F]."""
        return np.repeat(np.arange(len(self)), self.counts_Q)

    def first(self, k: int) -> Hits:
        """Return the first k hits of each query."""
        if self.counts_Q.max(initial=0) <= k:
            return self
        return self._where(np.arange(len(self.numbers_F)) - np.repeat(self.offsets[:-1], self.counts_Q) < k)

    def without(self, ids: Sequence[str]) -> Hits:
        """Remove one passage id from each query's hits."""
        distinct = list(dict.fromkeys(ids))
        numbers = dict(zip(distinct, self.passages.numbers_of(distinct).tolist(), strict=True))
        excluded_Q = np.array([numbers[passage_id] for passage_id in ids], np.int32)
        return self._where(self.numbers_F != np.repeat(excluded_Q, self.counts_Q))

    def of_queries(self, positions_Q: np.ndarray) -> Hits:
        """Return the hits of the queries at these positions, in this order; no hits for negative positions."""
        # The appended empty query serves negative positions.
        rows_F, offsets = rows_of(
            np.append(self.offsets, self.offsets[-1]), np.where(positions_Q < 0, len(self), positions_Q)
        )
        return Hits(self.passages, offsets, self.numbers_F[rows_F], self.scores_F[rows_F])

    def _of_queries(self, start: int, stop: int) -> Hits:
        rows = slice(self.offsets[start], self.offsets[stop])
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        return Hits(self.passages, offsets, self.numbers_F[rows], self.scores_F[rows])

    def _where(self, kept_F: np.ndarray) -> Hits:
        offsets = offsets_of(kept_F)[self.offsets]
        return Hits(self.passages, offsets, self.numbers_F[kept_F], self.scores_F[kept_F])


def top_k(scores_P: np.ndarray, ids: Sequence[str], k: int) -> list[Hit]:
    """Return the k best passages of one query as (id, score), without scores of -inf. Ids must be unique.

    Raises:
        ValueError: a score is NaN, or k is below 1.
    """
    passages, numbers_P = Passages.numbered(pa.array(ids, pa.large_string()))
    ranking = TopK(1, k, passages)
    ranking.add_for(0, np.asarray(scores_P), numbers_P)
    return ranking.results()[0]


def ranked_hits(passages: Passages, n_queries: int, columns: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Hits:
    """Rank all hits of each query and drop scores of -inf.

    `columns` are query numbers (integers [F]), passage numbers (int32 [F]) and scores (float64 [F]), in any order.

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
    """Collects the k best passages of each of Q queries from batches of scores, in O(Q·k) memory.

    The result equals sorting all scores at once, including ties.
    """

    def __init__(self, n_queries: int, k: int, passages: Passages, *, only_positive: bool = False) -> None:
        """Start empty; `only_positive` drops scores of 0 and below, as for sparse scores without a shared term.

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
        self.thresholds_Q = np.full(n_queries, -np.inf)
        """float64 [Q], minimum score to enter the top k; -inf below k passages."""

    def add(self, scores_QP: np.ndarray, numbers_P: np.ndarray) -> None:
        """Add the scores of a batch (floating [Q, P]) and its passage numbers (int32 [P]); raises as `add_for`."""
        for query, scores_P in enumerate(scores_QP):
            self.add_for(query, scores_P, numbers_P)

    def add_for(self, query: int, scores_C: np.ndarray, numbers_C: np.ndarray) -> None:
        """Add scores (floating [C]) and passage numbers (int32 [C]) of one query; each passage only once.

        Raises:
            ValueError: a score is NaN.
        """
        if np.isnan(scores_C).any():
            _refuse_nan(self._passages, scores_C, numbers_C, np.full(len(numbers_C), query))
        # Ties with the k-th best survive: ids decide.
        survivors_C = np.flatnonzero((scores_C >= self.thresholds_Q[query]) & (scores_C > self._floor))
        if len(survivors_C):
            self._merge(query, scores_C[survivors_C], numbers_C[survivors_C])

    def results(self) -> Hits:
        """Return the result lists, best first."""
        pairs = zip(self._numbers, self._scores, strict=True)
        orders = [np.lexsort((numbers_C, -scores_C)) for numbers_C, scores_C in pairs]
        numbers = [numbers_C[order_C] for numbers_C, order_C in zip(self._numbers, orders, strict=True)]
        scores = [scores_C[order_C] for scores_C, order_C in zip(self._scores, orders, strict=True)]
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
            self.thresholds_Q[query] = scores_C.min()
        self._scores[query], self._numbers[query] = scores_C, numbers_C


def kth_largest(values_C: np.ndarray, k: int) -> float:
    """Return the k-th largest of at least k values."""
    return float(np.partition(values_C, len(values_C) - k)[len(values_C) - k])


def _best(scores_C: np.ndarray, numbers_C: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k best of more than k candidates, unordered."""
    boundary = kth_largest(scores_C, k)
    above = np.flatnonzero(scores_C > boundary)
    tied = np.flatnonzero(scores_C == boundary)
    missing = k - len(above)
    if missing < len(tied):
        tied = tied[np.argpartition(numbers_C[tied], missing)[:missing]]
    return np.concatenate([above, tied])


def _refuse_nan(passages: Passages, scores_C: np.ndarray, numbers_C: np.ndarray, queries_C: np.ndarray) -> None:
    wrong = np.flatnonzero(np.isnan(scores_C))
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"the score of passage '{passages.ids[numbers_C[first]]}' for query number {queries_C[first]} is NaN: "
            "look for NaN in the stored vectors, or encode again in float32"
        )
