"""Exact scan of the stored impacts, streamed from disk in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pyarrow as pa

from diffretriever.core.progress import track
from diffretriever.index.damage import finite_rows
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import Way
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.hits import Hits, TopK
from diffretriever.vectors.representations import Representations, read_impacts
from diffretriever.vectors.sparse import impact_matrix, sparse_scores

_MAX_BATCH_ROWS = 16384
_COLUMNS = ("id", "impact_ids", "impact_weights")


class StreamingImpacts(EncodedSearch):
    """Multiplies the queries with every passage; all queries share one pass over the table."""

    way: ClassVar[Way] = "stream"

    def __init__(self, index: PassageIndex, memory_mb: int) -> None:
        """Any index can be searched so; one without impacts gives nothing."""
        self._index = index
        self.order = index.order
        """What the numbers of passages mean."""
        self._memory_mb = memory_mb
        self._vocab_size = index.manifest.vocab_size or 0

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages."""
        best = TopK(len(queries), k, self.order.passages, only_positive=True)
        batches = self._index.addressed_batches(_COLUMNS, self._batch_rows(queries))
        self._add(track(batches, "sparse scan", "passages", len(self._index), len), queries, best)
        return best.results()

    def add_fragment(self, fragment: Any, queries: Representations, best: TopK) -> None:
        """Score one fragment's passages into `best`."""
        self._add(self._index.fragment_batches(fragment, _COLUMNS, self._batch_rows(queries)), queries, best)

    def _add(self, batches: Iterable[pa.RecordBatch], queries: Representations, best: TopK) -> None:
        query_matrix = impact_matrix(
            queries.impact_ids, queries.impact_weights, queries.impact_offsets, self._vocab_size
        )
        for batch in finite_rows(self._index.uri, batches):
            passages = impact_matrix(*read_impacts(batch), self._vocab_size)
            numbers_P = self.order.numbers(batch.column("_rowaddr").to_numpy())
            best.add(sparse_scores(query_matrix, passages).toarray(), numbers_P)

    def _batch_rows(self, queries: Representations) -> int:
        return max(1, min(_MAX_BATCH_ROWS, (self._memory_mb << 20) // (16 * max(1, len(queries)))))
