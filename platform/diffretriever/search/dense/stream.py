"""Exact scan of the stored vectors, streamed from disk in bounded memory.

Legend: Q queries, P passages of a batch, M query vectors, N passage vectors, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from diffretriever.core.progress import track
from diffretriever.index.damage import refuse_rows
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import Way
from diffretriever.schemas.retriever import is_neural
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.hits import Hits, TopK
from diffretriever.vectors.maxsim import FP32_ROUNDING, Vectors, add_exact, contenders, longest, maxsim
from diffretriever.vectors.representations import Representations, read_vectors

_MAX_BATCH_ROWS = 16384
_BLOCK_BYTES = 32 << 20
"""Size of a batch's vectors in fp32; allocating larger blocks takes as long as all the products."""
_COLUMNS = ("id", "reps")


class StreamingScan(EncodedSearch):
    """Scores every passage in fp32; all queries share one pass over the table."""

    way: ClassVar[Way] = "stream"

    def __init__(self, index: PassageIndex, options: SearchOptions, device: torch.device) -> None:
        """Open any index with vectors.

        Raises:
            ValueError: the index is of the bm25 method.
        """
        retriever = index.manifest.retriever
        if not is_neural(retriever):
            raise ValueError(f"{index.uri} is of the bm25 method and has no vectors: search it with mode bm25")
        self._index = index
        self._options = options
        self._device = device
        self._max_vectors = retriever.max_vectors("passage")
        self.order = index.order
        """Maps passage numbers to ids."""

    def search(self, queries: Representations, k: int) -> Hits:
        """Return the k best passages of each query."""
        best = TopK(len(queries), k, self.order.passages)
        batches = self._index.addressed_batches(_COLUMNS, self.batch_rows(queries))
        self._add_batches(track(batches, "dense scan", "passages", len(self._index), len), queries, best)
        return best.results()

    def add_fragment(self, fragment: Any, queries: Representations, best: TopK) -> None:
        """Add the scores of one fragment's passages to `best`."""
        self._add_batches(self._index.fragment_batches(fragment, _COLUMNS, self.batch_rows(queries)), queries, best)

    def _add_batches(self, batches: Iterable[pa.RecordBatch], queries: Representations, best: TopK) -> None:
        query_vectors = Vectors(queries.vectors_MH.astype(np.float32), queries.offsets)
        device_query_MH = torch.from_numpy(query_vectors.vectors_MH).to(self._device)
        for batch in batches:
            stored_NH, offsets = self._read(batch)
            passages = Vectors(stored_NH.astype(np.float32), offsets)
            length = longest(passages.vectors_MH)
            if not np.isfinite(length):
                refuse_rows(self._index.uri, batch)
            passage_NH = torch.from_numpy(passages.vectors_MH).to(self._device)
            reduction, score_dtype = self._options.maxsim, self._options.score_dtype
            scores = maxsim(
                device_query_MH, queries.offsets, passage_NH, offsets, reduction=reduction, score_dtype=score_dtype
            )
            scores_QP = scores.cpu().numpy()
            numbers_P = self.order.numbers(batch.column("_rowaddr").to_numpy())
            if uses_authors_score(self._options):
                best.add(scores_QP, numbers_P)
                continue
            chosen = contenders(query_vectors, scores_QP, FP32_ROUNDING * length, best)
            add_exact(query_vectors, Vectors(stored_NH, offsets), numbers_P, chosen, best)

    def _read(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        return read_vectors(batch)

    def batch_rows(self, queries: Representations) -> int:
        """Return the passages to score at once, from the memory of their vectors and products."""
        n_vectors, hidden_size = queries.vectors_MH.shape
        per_row = self._max_vectors * (hidden_size * 6 + n_vectors * 4) + len(queries) * 16
        by_vectors = _BLOCK_BYTES // (self._max_vectors * hidden_size * 4)
        return max(1, min(_MAX_BATCH_ROWS, by_vectors, (self._options.memory_mb << 20) // per_row))


def uses_authors_score(options: SearchOptions) -> bool:
    """Return whether the options select the score of the authors' code, which only this scan computes."""
    return options.maxsim != "mean" or options.score_dtype != "float32"
