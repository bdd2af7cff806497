"""Exact search by way of 8-bit codes: scan the codes, and rescore whatever can still be among the best k.

Every score from codes comes with a bound on its error, so a passage is left out only where it provably is none of
the best. How many were rescored is counted: where bounds are loose the search gets slower, never wrong.

Legend: Q queries, P passages of all segments.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from diffretriever.encoders.finite import refuse_queries
from diffretriever.encoders.representations import Representations
from diffretriever.scoring.coded import CodedQueries
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.passages import CodedPassages
from diffretriever.search.dense.stream import StreamingScan
from schemas.jobs import SearchOptions


class CodedScan(DenseSearch):
    """Scans the codes of all segments; fragments without codes are scanned in fp32 and merged."""

    is_exact: ClassVar[bool] = True

    def __init__(
        self,
        passages: CodedPassages,
        uncoded: list[Any],
        stream: StreamingScan,
        options: SearchOptions,
        device: torch.device,
    ) -> None:
        self._passages = passages
        self._uncoded = uncoded
        self.stream = stream
        """What fragments without codes are scanned by."""
        self._device = device
        self._queries_at_once = max(1, (options.memory_mb << 19) // (4 * max(1, len(passages))))
        self.rescored = 0
        """Passages whose stored vectors were read since the search was opened, summed over queries."""

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages: the same as `StreamingScan`, faster."""
        refuse_queries(queries)
        self._passages.refuse_not_finite(self.stream.uri)
        hits: Hits = []
        for start in range(0, len(queries), self._queries_at_once):
            stop = min(len(queries), start + self._queries_at_once)
            hits += self._search(queries.take(np.arange(start, stop)), k)
        return hits

    def _search(self, queries: Representations, k: int) -> Hits:
        best = TopK(len(queries), k)
        for fragment in self._uncoded:
            self.stream.add_fragment(fragment, queries, best)
        coarse = CodedQueries.for_scan(queries.vectors_MH, queries.offsets, self._device)
        scores_QP = self._passages.scores(coarse, self._device)
        chosen = [self._passages.best_of_all(coarse, query, row_P, k) for query, row_P in enumerate(scores_QP)]
        if coarse.bits == 8:
            fine = CodedQueries(queries.vectors_MH, queries.offsets)
            chosen = [self._passages.best_of(fine, query, each.numbers_C, k) for query, each in enumerate(chosen)]
        self.rescored += self._passages.rescore(queries, chosen, best)
        return best.results()
