"""The order of an index version's passages by id, in which searches number passages.

Opening a version for search reads and sorts its ids. Besides the ids, the order takes 20 bytes of memory per passage.

Legend: P passages, W rows as they were written, deleted ones included, C given addresses, G fragments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa

from diffretriever.vectors.hits import NO_NUMBER, Hits, Passages
from diffretriever.vectors.representations import offsets_of

_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class PassageOrder:
    """Numbers of the passages in some fragments of an index version.

    Attributes:
        passages: ids and rows by number.
        fragments_G: int64 [G], Lance's fragment numbers, ascending.
        starts_G: int64 [G], start of each fragment's rows in `numbers_W`.
        numbers_W: int32 [W], passage number of each row, in table order; `NO_NUMBER` if deleted.
    """

    passages: Passages
    fragments_G: np.ndarray
    starts_G: np.ndarray
    numbers_W: np.ndarray

    @classmethod
    def of(cls, all_fragments: Iterable[Any], fragments: Iterable[Any], batches: Iterable[pa.RecordBatch]) -> Self:
        """Number passages by id.

        `batches` are the rows of `fragments`, with `id` and `_rowaddr`; `all_fragments` are those of the index.
        """
        selected = list(fragments)
        numbers_G = np.array([fragment.fragment_id for fragment in selected], np.int64)
        offsets = offsets_of([fragment.physical_rows for fragment in selected])
        if offsets[-1] > _MOST_ROWS:
            raise ValueError(f"{offsets[-1]:,} passages exceed the limit of one search: search the index in shards")
        read = list(batches)
        ids = [batch.column("id").cast(pa.large_string()) for batch in read]
        addresses_P = np.concatenate([np.empty(0, np.uint64), *(batch.column("_rowaddr").to_numpy() for batch in read)])
        passages, numbers_P = Passages.numbered(pa.chunked_array(ids, pa.large_string()))
        ascending = np.argsort(numbers_G)
        numbers_W = np.full(offsets[-1], NO_NUMBER, np.int32)
        order = cls(passages, numbers_G[ascending], offsets[ascending], numbers_W)
        numbers_W[order._positions(addresses_P)] = numbers_P
        return replace(order, passages=Passages(passages.ids, order._rows(all_fragments, selected)))

    def admitting(self, addresses_C: np.ndarray) -> PassageOrder:
        """Return the order without the passages at other addresses (`_rowaddr`, uint64 [C]); numbers stay."""
        positions_C = self._positions(addresses_C)
        numbers_W = np.full(len(self.numbers_W), NO_NUMBER, np.int32)
        numbers_W[positions_C] = self.numbers_W[positions_C]
        return replace(self, numbers_W=numbers_W)

    @cached_property
    def by_row(self) -> np.ndarray:
        """Passage numbers in table order, int32 [P]."""
        numbers_P: np.ndarray = self.numbers_W[self.numbers_W != NO_NUMBER]
        return numbers_P

    def renumbered(self, hits: Hits) -> Hits:
        """Translate hits from another order of the same version into numbers of this order, which has all passages."""
        rows_P = hits.passages.rows_P
        assert rows_P is not None, "hits of an index have rows"
        return replace(hits, passages=self.passages, numbers_F=self.by_row[rows_P[hits.numbers_F]])

    def numbers(self, addresses_C: np.ndarray) -> np.ndarray:
        """Return the numbers, int32 [C], of the passages at addresses (`_rowaddr`, uint64 [C])."""
        numbers_C: np.ndarray = self.numbers_W[self._positions(addresses_C)]
        return numbers_C

    def numbers_in(self, fragment: Any, rows_C: np.ndarray) -> np.ndarray:
        """Return the numbers, int32 [C], of the passages in rows (unsigned [C]) of a fragment as it was written."""
        return self.numbers((np.uint64(fragment.fragment_id) << np.uint64(32)) + rows_C.astype(np.uint64))

    def _positions(self, addresses_C: np.ndarray) -> np.ndarray:
        owners_C = np.searchsorted(self.fragments_G, (addresses_C >> np.uint64(32)).astype(np.int64))
        positions_C: np.ndarray = self.starts_G[owners_C] + (addresses_C & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return positions_C

    def _rows(self, all_fragments: Iterable[Any], fragments: Iterable[Any]) -> np.ndarray:
        """Return each passage's row in the whole table without deleted rows, int64 [P], by number."""
        before, count = {}, 0
        for fragment in all_fragments:
            before[fragment.fragment_id] = count
            count += fragment.count_rows()
        firsts = [np.arange(fragment.count_rows()) + before[fragment.fragment_id] for fragment in fragments]
        rows_P = np.empty(len(self.passages), np.int64)
        rows_P[self.by_row] = np.concatenate([np.empty(0, np.int64), *firsts])
        return rows_P
