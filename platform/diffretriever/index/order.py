"""The order of an index version's passages by id: the numbers that searches know passages by.

It is made when a version is opened to be searched: one pass over the ids, and one sort of them. It keeps 20 bytes of
memory for each passage besides its id (12 for where it lies, 8 for where its id begins).

Legend: P passages, W rows as they were written, deleted ones included, C given addresses, G fragments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from diffretriever.ragged import offsets_of
from diffretriever.scoring.hits import NO_NUMBER, Passages

_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class PassageOrder:
    """What is known of the passages of some fragments of an index version.

    Attributes:
        passages: their ids and addresses by number.
        fragments_G: int64 [G], the numbers that Lance gives the fragments, ascending.
        starts_G: int64 [G], where each fragment's rows begin in `numbers_W`.
        numbers_W: int32 [W], the number of the passage in each row, in table order; `NO_NUMBER` for a deleted one.
    """

    passages: Passages
    fragments_G: np.ndarray
    starts_G: np.ndarray
    numbers_W: np.ndarray

    @classmethod
    def of(cls, fragments: Iterable[Any], batches: Iterable[pa.RecordBatch]) -> Self:
        """Put passages in order.

        Args:
            fragments: Lance's, in table order.
            batches: all their rows, with `id` and `_rowaddr`.

        Raises:
            ValueError: there are more rows than numbers.
        """
        given = list(fragments)
        numbers_G = np.array([fragment.fragment_id for fragment in given], np.int64)
        offsets = offsets_of([fragment.physical_rows for fragment in given])
        ascending = np.argsort(numbers_G)
        if offsets[-1] > _MOST_ROWS:
            raise ValueError(f"{offsets[-1]:,} passages are too many for one search: search the index in shards")
        read = list(batches)
        ids = pa.chunked_array([batch.column("id") for batch in read], pa.large_string())
        addresses = [batch.column("_rowaddr").to_numpy() for batch in read]
        passages, numbers_P = Passages.numbered(ids)
        addresses_P = np.concatenate([*addresses, np.empty(0, np.uint64)])
        by_number_P = np.empty(len(passages), np.uint64)
        by_number_P[numbers_P] = addresses_P
        numbers_W = np.full(offsets[-1], NO_NUMBER, np.int32)
        made = cls(Passages(passages.ids, by_number_P), numbers_G[ascending], offsets[ascending], numbers_W)
        numbers_W[made._rows(addresses_P)] = numbers_P
        return made

    def numbers(self, addresses_C: np.ndarray) -> np.ndarray:
        """Return the numbers of the passages at these addresses of the table (uint64 [C]), int32 [C]."""
        numbers_C: np.ndarray = self.numbers_W[self._rows(addresses_C)]
        return numbers_C

    def numbers_in(self, fragment: Any, rows_C: np.ndarray) -> np.ndarray:
        """Return the numbers of the passages in rows of a fragment, int32 [C]; `NO_NUMBER` for deleted ones.

        Args:
            fragment: Lance's.
            rows_C: unsigned [C], places among the rows that the fragment was written with.
        """
        return self.numbers((np.uint64(fragment.fragment_id) << np.uint64(32)) + rows_C.astype(np.uint64))

    def _rows(self, addresses_C: np.ndarray) -> np.ndarray:
        places_C = np.searchsorted(self.fragments_G, (addresses_C >> np.uint64(32)).astype(np.int64))
        rows_C: np.ndarray = self.starts_G[places_C] + (addresses_C & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return rows_C
