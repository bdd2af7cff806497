"""Exact sparse search by postings, and by streaming fragments that have no postings yet.

Postings are in memory-mapped files in the index folder. Fragments are immutable, so these files are too; deletions are
read from the table at search time.

Legend: P passages of a fragment, C chosen passages, F passages found for one query, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from diffretriever.core.progress import track
from diffretriever.index.damage import finite_rows
from diffretriever.index.derived import read_arrays, write_arrays
from diffretriever.index.fragment_files import FileKind, with_files
from diffretriever.index.table import PassageIndex, fragment_key, rows_written
from diffretriever.schemas.mode import Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.encoded import EncodedSearch
from diffretriever.search.sparse.segment import Impacts, PostingsSegment, check_weights, search
from diffretriever.vectors.hits import Hits, TopK
from diffretriever.vectors.representations import Representations, read_impacts
from diffretriever.vectors.sparse import check_ids, impact_matrix, sparse_scores

_ROWS = {"fragment_rows": np.uint32}
_COLUMNS = ("id", "impact_ids", "impact_weights")
_MAX_BATCH_ROWS = 16384
_BUILD_ROWS = 4096
_QUERIES_AT_ONCE = 256


class StreamingImpacts(EncodedSearch):
    """Scores every passage; all queries share one pass over the table."""

    way: ClassVar[Way] = "stream"

    def __init__(self, index: PassageIndex, memory_mb: int) -> None:
        """Open any index; without impacts, searches return no hits."""
        self._index = index
        self.order = index.order
        """Maps passage numbers to ids."""
        self._memory_mb = memory_mb
        self._vocab_size = index.manifest.vocab_size or 0

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages."""
        best = TopK(len(queries), k, self.order.passages, only_positive=True)
        batches = self._index.addressed_batches(_COLUMNS, self._batch_rows(queries))
        self._add(track(batches, "sparse scan", "passages", len(self._index), len), queries, best)
        return best.results()

    def add_fragment(self, fragment: Any, queries: Representations, best: TopK) -> None:
        """Add the scores of one fragment's passages to `best`."""
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


class PostingsSearch(EncodedSearch):
    """Searches the postings of all fragments that have some; the others are streamed and merged."""

    way: ClassVar[Way] = "postings"

    def __init__(
        self,
        index: PassageIndex,
        inverted: Sequence[tuple[Any, FragmentPostings]],
        without: list[Any],
        stream: StreamingImpacts,
    ) -> None:
        """Search the postings of fragments; `stream` scans the fragments without postings."""
        self._segments = [postings.segment for _, postings in inverted]
        self._numbers = [index.order.numbers_in(fragment, postings.rows_P) for fragment, postings in inverted]
        self._without = without
        self._stream = stream

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages, exactly as `StreamingImpacts` does."""
        check_ids(queries.impact_ids, self._segments[0].vocab_size)
        check_weights(queries.impact_weights, "the queries")
        best = TopK(len(queries), k, self._stream.order.passages, only_positive=True)
        for fragment in self._without:
            self._stream.add_fragment(fragment, queries, best)
        threads, starts = torch.get_num_threads(), range(0, len(queries), _QUERIES_AT_ONCE)
        for first in track(starts, f"sparse search, {_QUERIES_AT_ONCE} queries at once", "rounds"):
            offsets = queries.impact_offsets[first : first + _QUERIES_AT_ONCE + 1]
            batch = queries.impact_ids, queries.impact_weights, offsets
            for number, hits in enumerate(search(self._segments, self._numbers, batch, k, threads=threads)):
                best.add_for(first + number, hits.scores, hits.numbers)
        return best.results()


def may_have_postings(index: PassageIndex) -> bool:
    """Return whether the index has impacts."""
    # BM25 also has sparse scores, but no model vocabulary.
    return index.manifest.vocab_size is not None and "sparse" in index.manifest.retriever.modes


def open_sparse(index: PassageIndex, options: SearchOptions) -> EncodedSearch:
    """Return the fastest available search: by postings, or else by streaming the stored impacts."""
    stream = StreamingImpacts(index, options.memory_mb)
    if not may_have_postings(index):
        return stream
    opened, without = with_files(index, POSTINGS)
    return PostingsSearch(index, opened, without, stream) if opened else stream


def build_fragment_postings(index: PassageIndex, fragment: Any) -> None:
    """Build the postings of one fragment.

    Raises:
        ValueError: the impacts are invalid.
    """
    assert index.manifest.vocab_size is not None, "impacts point into a vocabulary"
    batches = finite_rows(index.uri, index.fragment_batches(fragment, _COLUMNS, _BUILD_ROWS))
    try:
        with POSTINGS.folder_of(index, fragment).build() as folder:
            rows: list[np.ndarray] = []
            segment = PostingsSegment.build(_impacts(batches, rows), index.manifest.vocab_size, folder)
            segment.save(folder)
            write_arrays(folder, _ROWS, [{"fragment_rows": rows_P} for rows_P in rows])
    except ValueError as error:
        raise ValueError(
            f"cannot build postings of fragment {fragment_key(fragment)}: {error}; "
            f"`python jobs/inspect_index.py --index {index.uri} --verify` names the passages"
        ) from error


def _impacts(batches: Iterable[pa.RecordBatch], rows: list[np.ndarray]) -> Iterator[Impacts]:
    """Yield the impacts of each batch, and append the rows of its passages to `rows`."""
    for batch in batches:
        rows.append(rows_written(batch.column("_rowaddr").to_numpy()))
        yield read_impacts(batch)


@dataclass(frozen=True)
class FragmentPostings:
    """The postings of a fragment.

    Attributes:
        segment: the inverted index.
        rows_P: uint32 [P], ascending row of each passage of the segment in the fragment as written.
    """

    segment: PostingsSegment
    rows_P: np.ndarray

    def __len__(self) -> int:
        return len(self.rows_P)

    @classmethod
    def open(cls, folder: Path) -> FragmentPostings:
        """Map the files in `folder`; raises ValueError if they are inconsistent."""
        segment, rows_P = PostingsSegment.open(folder), read_arrays(folder, _ROWS)["fragment_rows"]
        if len(rows_P) != segment.passages:
            raise ValueError("the files do not fit together")
        return cls(segment, rows_P)


POSTINGS = FileKind("postings", FragmentPostings.open, "fragment_rows.bin")
"""The postings of a fragment, as derived files of the index."""
