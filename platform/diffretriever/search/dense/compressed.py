"""Exact search of a compressed index: scores straight from the codes, nothing decoded but what can be among the best.

A codec's scores differ from those of the stored vectors (decoded, rounded to fp16) by no more than that rounding and
the order of sums, so the bound is tight, and few passages are decoded to be scored exactly.

Legend: Q queries, P passages of a batch, C chosen passages, M query vectors, N vectors, W bytes of a vector.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from diffretriever.encoders.representations import Representations, refuse_queries
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_of, read_codes
from diffretriever.scoring.halves import widened
from diffretriever.scoring.maxsim import FP32_ROUNDING, exact_scores, possible
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.stream import StreamingScan

_SLACK = 2.0**-11 + 2.0**-13 + FP32_ROUNDING
"""Of a score, relative to a query vector's length: fp16 rounding changes a unit vector by 2^-11 of its length. 2^-13 is
for what little its numbers below fp16's normal range (2^-25 each) and the sums of table entries add."""


class CompressedScan(DenseSearch):
    """Scores every passage from its codes; all queries share one pass over the table."""

    is_exact: ClassVar[bool] = True

    def __init__(self, index: PassageIndex, stream: StreamingScan) -> None:
        """`stream` scans the same index; it knows how many passages fit into memory."""
        self._index = index
        self._stream = stream
        self._codec = codec_of(index.uri, index.manifest)
        self.rescored = 0
        """Passages decoded since the search was opened."""

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages: the same as `StreamingScan`, faster."""
        refuse_queries(queries)
        best = TopK(len(queries), k)
        for batch in self._index.batches(("id", "codes"), self._stream.batch_rows(queries)):
            self._add_batch(batch, queries, best)
        return best.results()

    def _add_batch(self, batch: pa.RecordBatch, queries: Representations, best: TopK) -> None:
        codes_NW, offsets = read_codes(batch)
        scores_QP = self._codec.maxsim(queries.vectors_MH, queries.offsets, codes_NW, offsets)
        query_MH = queries.vectors_MH.astype(np.float32)
        chosen = [
            possible(scores_P, _SLACK * _longest(_own(query_MH, queries, query)), best.k, best.threshold(query))
            for query, scores_P in enumerate(scores_QP)
        ]
        needed_C = np.unique(np.concatenate([*chosen, np.empty(0, np.int64)]))
        vectors_NH, needed_offsets = self._decoded(codes_NW, offsets, needed_C)
        self.rescored += len(needed_C)
        ids_P = np.array(batch.column("id").to_pylist(), dtype=object)
        for query, rows_C in enumerate(chosen):
            if len(rows_C):
                places_C = np.searchsorted(needed_C, rows_C)
                scores_C = exact_scores(_own(query_MH, queries, query), vectors_NH, needed_offsets, places_C)
                best.add_for(query, scores_C, ids_P[rows_C])

    def _decoded(
        self, codes_NW: np.ndarray, offsets: np.ndarray, chosen_C: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        counts_C = np.diff(offsets)[chosen_C]
        new_offsets = np.concatenate([[0], np.cumsum(counts_C)])
        rows_N = np.repeat(offsets[chosen_C] - new_offsets[:-1], counts_C) + np.arange(new_offsets[-1])
        return widened(self._codec.decode(codes_NW[rows_N]).astype(np.float16)), new_offsets


def _own(query_MH: np.ndarray, queries: Representations, query: int) -> np.ndarray:
    return query_MH[queries.offsets[query] : queries.offsets[query + 1]]


def _longest(vectors_MH: np.ndarray) -> float:
    return float(np.linalg.norm(vectors_MH, axis=1).max(initial=0))
