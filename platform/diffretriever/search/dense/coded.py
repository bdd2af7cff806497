"""Exact search by way of 8-bit codes: scan the codes, and rescore whatever can still be among the best k.

Every score from codes comes with a bound on its error, so a passage is left out only where it provably is none of
the best. How many were rescored is counted: where bounds are loose the search gets slower, never wrong.

Legend: Q queries, P passages of all segments, C chosen passages of a query.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.coded import CodedQueries
from diffretriever.scoring.exact import possible
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.rescore import rescore
from diffretriever.search.dense.segments import Segment
from diffretriever.search.dense.stream import StreamingScan
from schemas.jobs import SearchOptions


class CodedScan(DenseSearch):
    """Scans the codes of all segments; fragments without codes are scanned in fp32 and merged."""

    is_exact: ClassVar[bool] = True

    def __init__(
        self,
        index: PassageIndex,
        segments: list[Segment],
        uncoded: list[Any],
        stream: StreamingScan,
        options: SearchOptions,
        device: torch.device,
    ) -> None:
        self._index = index
        self._segments = segments
        self._uncoded = uncoded
        self._stream = stream
        self._device = device
        self._queries_at_once = max(1, (options.memory_mb << 19) // (4 * max(1, len(index))))
        self.rescored = 0
        """Passages whose stored vectors were read since the search was opened, summed over queries."""

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages: the same as `StreamingScan`, faster."""
        hits: Hits = []
        for start in range(0, len(queries), self._queries_at_once):
            stop = min(len(queries), start + self._queries_at_once)
            hits += self._search(queries.take(np.arange(start, stop)), k)
        return hits

    def _search(self, queries: Representations, k: int) -> Hits:
        best = TopK(len(queries), k)
        for fragment in self._uncoded:
            self._stream.add_fragment(fragment, queries, best)
        coded = CodedQueries(queries.vectors_MH, queries.offsets)
        scores_QP = np.concatenate([coded.scores(s.codes.vectors, self._device) for s in self._segments], axis=1)
        positions_P = np.concatenate([s.positions_P for s in self._segments])
        errors_P = np.concatenate([s.codes.errors_P for s in self._segments])
        norms_P = np.concatenate([s.codes.norms_P for s in self._segments])
        scores_QP[:, positions_P < 0] = -np.inf
        chosen = [
            np.sort(positions_P[possible(row_P, coded.slack(query, errors_P, norms_P), k)])
            for query, row_P in enumerate(scores_QP)
        ]
        self.rescored += sum(map(len, chosen))
        rescore(self._index, queries, chosen, best)
        return best.results()
