"""Exact search by an inverted index: postings of most fragments, and a stream of those that have none yet.

Legend: F passages found for one query.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffretriever.encoders.finite import refuse_queries
from diffretriever.encoders.representations import Representations
from diffretriever.postings.search import Found, search_many
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.sparse.base import SparseSearch
from diffretriever.search.sparse.segments import Segment
from diffretriever.search.sparse.stream import StreamingImpacts

_QUERIES_AT_ONCE = 256


class PostingsSearch(SparseSearch):
    """Searches the postings of all segments; fragments without postings are streamed and merged."""

    def __init__(self, segments: list[Segment], without: list[Any], stream: StreamingImpacts, threads: int) -> None:
        """`threads` is how many queries are searched for at a time."""
        self._segments = segments
        self._inverted = [segment.postings.segment for segment in segments]
        self._deleted = [segment.deleted_P for segment in segments]
        self._without = without
        self._stream = stream
        self._threads = threads

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages: the same as `StreamingImpacts`, sooner."""
        refuse_queries(queries)
        best = TopK(len(queries), k, only_positive=True)
        for fragment in self._without:
            self._stream.add_fragment(fragment, queries, best)
        # What is found for a query is held until its ids are looked up.
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            offsets = queries.impact_offsets[first : first + _QUERIES_AT_ONCE + 1]
            found = search_many(
                self._inverted,
                queries.impact_ids,
                queries.impact_weights,
                offsets,
                k,
                deleted=self._deleted,
                threads=self._threads,
            )
            for number, each in enumerate(found):
                best.add_for(first + number, each.scores, self._ids(each))
        return best.results()

    def _ids(self, found: Found) -> np.ndarray:
        # Segment by segment, as each is asked once for all of its passages.
        order_F = np.argsort(found.segments, kind="stable")
        rows_F = found.rows[order_F]
        ends = np.searchsorted(found.segments[order_F], np.arange(len(self._segments) + 1)).tolist()
        ids: list[str] = []
        for segment, first, last in zip(self._segments, ends[:-1], ends[1:], strict=True):
            if last > first:
                ids += segment.postings.ids_of(rows_F[first:last])
        ids_F = np.empty(len(ids), dtype=object)
        ids_F[order_F] = ids
        return ids_F
