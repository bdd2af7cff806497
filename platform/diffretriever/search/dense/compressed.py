"""Exact search of a compressed index: approximate scores by its codec, exact ones of the few that can be the best.

A codec's scores differ from those of the stored vectors (decoded, rounded to fp16) by no more than that rounding and
the order of sums, so the bound is tight, and few passages are decoded to be scored exactly.

Legend: Q queries, P passages of a batch, C chosen passages, M query vectors, N vectors, W bytes of a packed vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch

from diffretriever.encoders.representations import Representations, refuse_queries
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_of, read_packed
from diffretriever.ragged import rows_of
from diffretriever.schemas.mode import Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.scoring.hits import NO_NUMBER, Hits, TopK
from diffretriever.scoring.maxsim import FP32_ROUNDING, Vectors, add_exact, contenders
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.packed import PackedSegment, open_packed
from diffretriever.search.dense.stream import StreamingScan, asks_for_the_authors_score

_COLUMNS = ("codes",)
_RELATIVE_ERROR = 2.0**-11 + 2.0**-13 + FP32_ROUNDING
"""Of a score, relative to a query vector's length: fp16 rounding changes a unit vector by 2^-11 of its length. 2^-13 is
for what little its numbers below fp16's normal range (2^-25 each) and the sums of table entries add."""


class CompressedScan(DenseSearch):
    """Scores every passage by what the codec made of it; all queries share one pass.

    Packed vectors come from the mapped files of the fragments that have some, and from the table for the others.
    """

    way: ClassVar[Way] = "compressed"
    is_exact: ClassVar[bool] = True

    def __init__(
        self,
        index: PassageIndex,
        stream: StreamingScan,
        segments: Sequence[PackedSegment] = (),
        without: Sequence[Any] = (),
    ) -> None:
        """Search a compressed index.

        Args:
            index: the version.
            stream: scans the same index; it knows how many passages fit into memory.
            segments: what is mapped of it; where nothing is, all is read from the table.
            without: the fragments that have no mapped files.
        """
        self._index = index
        self._segments, self._without = segments, without
        self._stream = stream
        self._codec = codec_of(index.uri, index.manifest)
        self.rescored = 0
        """Passages decoded since the search was opened."""

    @classmethod
    def open(cls, index: PassageIndex, options: SearchOptions, device: torch.device) -> Self | None:
        """Open it over an index whose vectors are stored by a codec alone."""
        if not index.manifest.decodes or asks_for_the_authors_score(options):
            return None
        return cls(index, StreamingScan.open(index, options, device), *open_packed(index))

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages: the same as `StreamingScan`, faster."""
        refuse_queries(queries)
        order = self._stream.order
        best = TopK(len(queries), k, order.passages)
        rows = self._stream.batch_rows(queries)
        for block in (block for segment in self._segments for block in _mapped_blocks(segment, rows)):
            self._add(block, queries, best)
        for batch in self._batches(rows):
            self._add(_Block(*read_packed(batch), order.numbers(batch.column("_rowaddr").to_numpy())), queries, best)
        return best.results()

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        if not self._segments:
            yield from self._index.addressed_batches(_COLUMNS, rows)
            return
        for fragment in self._without:
            yield from self._index.fragment_batches(fragment, _COLUMNS, rows)

    def _add(self, block: _Block, queries: Representations, best: TopK) -> None:
        asked = Vectors(queries.vectors_MH.astype(np.float32), queries.offsets)
        scores_QP = self._codec.maxsim(queries.vectors_MH, queries.offsets, block.packed_NW, block.offsets)
        scores_QP[:, block.numbers_P == NO_NUMBER] = -np.inf
        chosen = contenders(asked, scores_QP, _RELATIVE_ERROR, best)
        needed_P = np.unique(np.concatenate([*chosen, np.empty(0, np.int64)]))
        self.rescored += len(needed_P)
        rows_N, needed_offsets = rows_of(block.offsets, needed_P)
        decoded_NH = self._codec.decode(block.packed_NW[rows_N]).astype(np.float16)
        passages = Vectors(decoded_NH.astype(np.float32), needed_offsets)
        rows = [np.searchsorted(needed_P, chosen_C) for chosen_C in chosen]
        add_exact(asked, passages, block.numbers_P[needed_P], rows, best)


class _Block(NamedTuple):
    """Some passages that are scored together."""

    packed_NW: np.ndarray
    offsets: np.ndarray
    numbers_P: np.ndarray
    """int32 [P]; `NO_NUMBER` for those that are not in the table any more."""


def _mapped_blocks(segment: PackedSegment, rows: int) -> Iterator[_Block]:
    packed = segment.packed
    for start in range(0, len(packed), rows):
        offsets = packed.offsets[start : start + rows + 1]
        packed_NW = packed.packed_NW[offsets[0] : offsets[-1]]
        yield _Block(packed_NW, offsets - offsets[0], segment.numbers_P[start : start + rows])
