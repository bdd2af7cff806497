"""Exact scan of the stored vectors themselves, streamed from disk in bounded memory.

Legend: Q queries, P passages of a batch, M query vectors, N passage vectors, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from diffretriever.encoders.representations import Representations, read_vectors, refuse_queries
from diffretriever.index.finite import refuse_rows
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.halves import widened
from diffretriever.scoring.maxsim import FP32_ROUNDING, exact_scores, maxsim, possible
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.dense.base import DenseSearch
from schemas.search import SearchOptions

_MAX_BATCH_ROWS = 16384
_BLOCK_BYTES = 32 << 20
"""Of a batch's vectors in fp32: of larger blocks, getting fresh memory takes as long as all the products."""
COLUMNS = ("id", "reps")


class StreamingScan(DenseSearch):
    """Scores every passage in fp32; all queries share one pass over the table."""

    is_exact: ClassVar[bool] = True

    def __init__(self, index: PassageIndex, options: SearchOptions, device: torch.device, max_vectors: int) -> None:
        """`max_vectors` is the most vectors a passage can have; memory for a batch is reserved by it."""
        self._index = index
        self._options = options
        self._device = device
        self._max_vectors = max_vectors
        self._as_the_authors = options.maxsim != "mean" or options.score_dtype != "float32"

    @property
    def uri(self) -> str:
        """Where the index is."""
        return self._index.uri

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages."""
        refuse_queries(queries)
        best = TopK(len(queries), k)
        self.add_batches(self._index.batches(COLUMNS, self.batch_rows(queries)), queries, best)
        return best.results()

    def add_fragment(self, fragment: Any, queries: Representations, best: TopK) -> None:
        """Score one fragment's passages into `best`."""
        self.add_batches(self._index.fragment_batches(fragment, COLUMNS, self.batch_rows(queries)), queries, best)

    def add_batches(self, batches: Iterable[pa.RecordBatch], queries: Representations, best: TopK) -> None:
        """Score batches with `id` and `reps` into `best`."""
        query_MH = queries.vectors_MH.astype(np.float32)
        device_query_MH = torch.from_numpy(query_MH).to(self._device)
        for batch in batches:
            stored_NH, offsets = read_vectors(batch)
            vectors_NH = widened(stored_NH)
            longest = _longest(vectors_NH)
            if not np.isfinite(longest):
                refuse_rows(self.uri, batch)
            scores_QP = self._scores(device_query_MH, queries.offsets, vectors_NH, offsets)
            ids = batch.column("id").to_pylist()
            if self._as_the_authors:
                best.add(scores_QP, ids)
                continue
            slack = FP32_ROUNDING * longest
            ids_P = np.array(ids, dtype=object)
            for query, scores_P in enumerate(scores_QP):
                own = query_MH[queries.offsets[query] : queries.offsets[query + 1]]
                own_slack = slack * _longest(own)
                rows_C = possible(scores_P, own_slack, best.k, best.threshold(query))
                if len(rows_C):
                    best.add_for(query, exact_scores(own, vectors_NH, offsets, rows_C), ids_P[rows_C])

    def batch_rows(self, queries: Representations) -> int:
        """Passages scored at once, from the memory that their vectors and products take."""
        per_vector = queries.hidden_size * 6 + len(queries.vectors_MH) * 4
        per_row = self._max_vectors * per_vector + len(queries) * 16
        by_vectors = _BLOCK_BYTES // (self._max_vectors * queries.hidden_size * 4)
        return max(1, min(_MAX_BATCH_ROWS, by_vectors, (self._options.memory_mb << 20) // per_row))

    def _scores(
        self, query_MH: torch.Tensor, query_offsets: np.ndarray, vectors_NH: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        scores_QP = maxsim(
            query_MH,
            query_offsets,
            torch.from_numpy(vectors_NH).to(self._device),
            offsets,
            reduction=self._options.maxsim,
            score_dtype=self._options.score_dtype,
        )
        scores: np.ndarray = scores_QP.cpu().numpy()
        return scores


def _longest(vectors_NH: np.ndarray) -> float:
    # Unlike `np.linalg.norm`, this makes no squares of its own: it is a tenth of the scan's time otherwise.
    return float(np.sqrt(np.einsum("nh,nh->n", vectors_NH, vectors_NH).max(initial=0)))
