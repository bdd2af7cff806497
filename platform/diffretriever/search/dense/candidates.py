"""Search through a candidate index: something fast names passages, and only those are scored, exactly.

A candidate index never scores what is returned: its passages go through the 8-bit codes, and those that can be among
the best k of them through their stored vectors. Fragments without codes are scanned whole and merged, so new
passages are neither favoured nor hidden.

Legend: P passages of all segments, C candidates of a query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.coded import CodedQueries
from diffretriever.scoring.exact import possible
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.rescore import rescore
from diffretriever.search.dense.segments import Segment
from diffretriever.search.dense.stream import StreamingScan


class Proposer(ABC):
    """A candidate index over the segments of one index version."""

    name: ClassVar[str]

    @abstractmethod
    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return, per query, at most n passages as numbers into the segments' passages, most promising first.

        Numbers count through the segments in order, deleted passages included: int64 [C], none twice.
        """


class CandidateSearch(DenseSearch):
    """Scores the `search_budget` passages that the proposer names."""

    is_exact: ClassVar[bool] = False

    def __init__(
        self,
        index: PassageIndex,
        segments: list[Segment],
        uncoded: list[Any],
        stream: StreamingScan,
        proposer: Proposer,
        search_budget: int,
    ) -> None:
        self._index = index
        self._segments = segments
        self._uncoded = uncoded
        self._stream = stream
        self.proposer = proposer
        self.search_budget = search_budget
        self._starts = np.cumsum([0, *(len(s.positions_P) for s in segments)])
        self._positions_P = np.concatenate([s.positions_P for s in segments])
        self._errors_P = np.concatenate([s.codes.errors_P for s in segments])
        self._norms_P = np.concatenate([s.codes.norms_P for s in segments])

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages among the candidates and the fragments without codes."""
        best = TopK(len(queries), k)
        for fragment in self._uncoded:
            self._stream.add_fragment(fragment, queries, best)
        coded = CodedQueries(queries.vectors_MH, queries.offsets)
        proposals = self.proposer.propose(queries, max(k, self.search_budget))
        chosen = [self._narrow(coded, query, proposal, k) for query, proposal in enumerate(proposals)]
        rescore(self._index, queries, chosen, best)
        return best.results()

    def _narrow(self, coded: CodedQueries, query: int, proposal_C: np.ndarray, k: int) -> np.ndarray:
        """Return the table positions, ascending, of the candidates that can be among the best k of them."""
        live_C = np.sort(proposal_C[self._positions_P[proposal_C] >= 0])
        scores_C = self._code_scores(coded, query, live_C)
        slack_C = coded.slack(query, self._errors_P[live_C], self._norms_P[live_C])
        return np.sort(self._positions_P[live_C[possible(scores_C, slack_C, k)]])

    def _code_scores(self, coded: CodedQueries, query: int, numbers_C: np.ndarray) -> np.ndarray:
        borders = np.searchsorted(numbers_C, self._starts)
        parts: Sequence[np.ndarray] = [
            coded.chosen_scores(query, segment.codes.vectors, numbers_C[low:high] - start)
            for segment, start, low, high in zip(
                self._segments, self._starts[:-1], borders[:-1], borders[1:], strict=True
            )
            if high > low
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)
