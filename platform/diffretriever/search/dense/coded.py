"""Exact dense search that scans 8-bit codes and rescores the top-k candidates by bound.

Each approximate score has an error bound. Only passages that provably miss the top k are pruned, so results are exact.

Legend: Q queries, P passages of all segments, C chosen passages of one query, N vectors, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from diffretriever.core.progress import track
from diffretriever.schemas.mode import Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense.codes import Segment
from diffretriever.search.dense.resident import ResidentCodes
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.hits import NO_NUMBER, Hits, TopK
from diffretriever.vectors.maxsim import PRODUCT_VECTORS, CodedQueries, Shortlist, can_be_best, exact_scores
from diffretriever.vectors.representations import Representations, offsets_of

_BOUNDLESS = 1e30
"""Error bound of passages without codes, which are never pruned."""
_FEW = 0.3
"""Share of live passages below which scoring them individually is faster than a full scan."""


class CodedScan(EncodedSearch):
    """Scans the codes of all segments; fragments without codes are scanned in fp32 and merged."""

    way: ClassVar[Way] = "codes"

    def __init__(
        self,
        passages: CodedPassages,
        uncoded: list[Any],
        stream: StreamingScan,
        options: SearchOptions,
        resident: ResidentCodes | None = None,
    ) -> None:
        """Search `passages`, and the fragments without codes (`uncoded`) by `stream`.

        `resident` has the codes of the same segments on a GPU; None scores on the CPU.
        """
        self._passages = passages
        self._uncoded = uncoded
        self.stream = stream
        """Scans the fragments without codes."""
        self._resident = resident
        self._queries_at_once = max(1, (options.memory_mb << 19) // (4 * max(1, len(passages))))

    def search(self, queries: Representations, k: int) -> Hits:
        """Return the k best passages of each query, exactly as `StreamingScan` does."""
        count = len(queries)
        best = TopK(count, k, self.stream.order.passages)
        for fragment in self._uncoded:
            self.stream.add_fragment(fragment, queries, best)
        # If the codes exceed the GPU's memory, every round copies some again.
        at_once = self._queries_at_once if self._resident is None or self._resident.fits else count
        parts = queries.split(at_once) if count else []
        self._passages.rescore(queries, [shortlist for part in parts for shortlist in self._chosen(part, k)], best)
        return best.results()

    def _chosen(self, queries: Representations, k: int) -> list[Shortlist]:
        live_C = np.flatnonzero(self._passages.live_P)
        if len(live_C) < _FEW * len(self._passages):
            fine = CodedQueries(queries.vectors_MH, queries.offsets)
            return [self._passages.best_of(fine, query, live_C, k) for query in range(len(queries))]
        if self._resident is not None:
            return self._resident.shortlists(queries, k)
        # Integer matrix products are faster for many query vectors, the kernel for few.
        bits: Literal[8, 16] = 8 if len(queries.vectors_MH) > PRODUCT_VECTORS else 16
        coarse = CodedQueries(queries.vectors_MH, queries.offsets, bits)
        scores_QP = self._passages.scores(coarse)
        chosen = [self._passages.best_of_all(coarse, query, row_P, k) for query, row_P in enumerate(scores_QP)]
        if bits == 16:
            return chosen
        fine = CodedQueries(queries.vectors_MH, queries.offsets)
        return [self._passages.best_of(fine, query, shortlist.numbers_C, k) for query, shortlist in enumerate(chosen)]


class CodedPassages:
    """Scores the passages of several segments, by codes with an error bound or exactly by vectors.

    Passages are numbered consecutively across segments, including deleted ones.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.starts = offsets_of([len(s.codes) for s in segments])
        self.numbers_P = _joined([s.numbers_P for s in segments], np.int32)
        """int32 [P], numbers in the order of the index; `NO_NUMBER` for deleted passages."""
        self.live_P = self.numbers_P != NO_NUMBER
        """bool [P], False for deleted passages."""
        self._errors_P = np.full(len(self), _BOUNDLESS, np.float32)
        self._norms_P = np.zeros(len(self), np.float32)
        for segment, start, end in zip(segments, self.starts, self.starts[1:], strict=False):
            if segment.codes.slots is not None:
                self._errors_P[start:end] = segment.codes.slots.errors_P
                self._norms_P[start:end] = segment.codes.slots.norms_P

    def __len__(self) -> int:
        return int(self.starts[-1])

    def scores(self, coded: CodedQueries) -> np.ndarray:
        """Return approximate mean MaxSim, float32 [Q, P]; -inf for passages deleted or without vectors.

        All segments must have codes of slot vectors.
        """
        vectors = [s.codes.slots.vectors for s in self.segments if s.codes.slots is not None]
        scores_QP = np.concatenate([coded.scores(codes) for codes in vectors], axis=1)
        scores_QP[:, ~self.live_P] = -np.inf
        return scores_QP

    def best_of_all(self, coded: CodedQueries, query: int, scores_P: np.ndarray, k: int) -> Shortlist:
        """Return the top-k candidates of one query, given its approximate scores, float32 [P]."""
        slack_P = coded.slack(query, self._errors_P, self._norms_P)
        chosen_C = can_be_best(scores_P, slack_P, k)
        return Shortlist(chosen_C, scores_P[chosen_C] + slack_P[chosen_C])

    def best_of(self, coded: CodedQueries, query: int, chosen_C: np.ndarray, k: int) -> Shortlist:
        """Return the top-k candidates of one query among the passages chosen_C, int64 [C] ascending."""
        live_C = chosen_C[self.live_P[chosen_C]]
        parts = [
            np.zeros(len(rows_C), np.float32)
            if s.codes.slots is None
            else coded.chosen_scores(query, s.codes.slots.vectors, rows_C)
            for s, rows_C in self.split(live_C)
        ]
        scores_C = _joined(parts, np.float32)
        slack_C = coded.slack(query, self._errors_P[live_C], self._norms_P[live_C])
        kept = can_be_best(scores_C, slack_C, k)
        return Shortlist(live_C[kept], scores_C[kept] + slack_C[kept])

    def mean_scores(self, coded: CodedQueries, query: int, chosen_C: np.ndarray) -> np.ndarray:
        """Return approximate products of one query's vector with mean passage vectors, float32 [C]."""
        parts = [coded.chosen_scores(query, s.codes.means, rows_C) for s, rows_C in self.split(chosen_C)]
        return _joined(parts, np.float32)

    def rescore(self, queries: Representations, shortlists: Sequence[Shortlist], best: TopK) -> None:
        """Add exact fp32 MaxSim scores of each query's shortlist to `best`, on torch's number of threads."""
        # The most promising passages first: their scores rule out most of the others.
        vectors_MH = queries.vectors_MH.astype(np.float32)

        def score(query: int) -> None:
            query_MH = vectors_MH[queries.offsets[query] : queries.offsets[query + 1]]
            chosen_C, most_C = shortlists[query]
            first_C = _leading(most_C, best.k)
            self._score(query, query_MH, chosen_C[first_C], best)
            promising_C = ~first_C & (most_C >= best.thresholds_Q[query])
            self._score(query, query_MH, chosen_C[promising_C], best)

        count = len(shortlists)
        if count == 1:
            score(0)
            return
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for _ in track(pool.map(score, range(count)), "dense search", "queries", count):
                pass

    def _score(self, query: int, query_MH: np.ndarray, chosen_C: np.ndarray, best: TopK) -> None:
        if len(chosen_C):
            best.add_for(query, self.exact_scores(query_MH, chosen_C), self.numbers_P[chosen_C])

    def exact_scores(self, query_MH: np.ndarray, chosen_C: np.ndarray) -> np.ndarray:
        """Return the mean MaxSim of one query (float32 [M, H]) with passages (int64 [C] ascending), float32 [C]."""
        scores_C = np.empty(len(chosen_C), np.float32)
        is_in_table_C = np.zeros(len(chosen_C), bool)
        start = 0
        for segment, rows_C in self.split(chosen_C):
            target, slots = slice(start, start + len(rows_C)), segment.codes.slots
            start = target.stop
            if slots is None:
                is_in_table_C[target] = True
            else:
                scores_C[target] = exact_scores(query_MH, slots.copy_NH, slots.vectors.offsets, rows_C)
        if is_in_table_C.any():
            # One read for all segments: Lance takes nearly as long for one of them.
            numbers_C = self.numbers_P[chosen_C[is_in_table_C]]
            stored = self.segments[0].index.vectors_of(numbers_C)
            scores_C[is_in_table_C] = exact_scores(query_MH, *stored, np.arange(len(numbers_C)))
        return scores_C

    def split(self, chosen_C: np.ndarray) -> Iterator[tuple[Segment, np.ndarray]]:
        """Yield each segment that contains passages of chosen_C (int64 [C] ascending), and their rows within it."""
        borders = np.searchsorted(chosen_C, self.starts)
        for segment, start, low, high in zip(self.segments, self.starts[:-1], borders[:-1], borders[1:], strict=True):
            if high > low:
                yield segment, chosen_C[low:high] - start


def _leading(most_C: np.ndarray, k: int) -> np.ndarray:
    if len(most_C) <= 2 * k:
        return np.ones(len(most_C), bool)
    leading_C = np.zeros(len(most_C), bool)
    leading_C[np.argpartition(most_C, len(most_C) - k)[len(most_C) - k :]] = True
    return leading_C


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
