"""The passages of one collection, read as if the index held no others: exact filters, by a scan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import columns_to_read, with_vectors


class FilteredIndex(PassageIndex):
    """A reader of the passages of one collection; nothing can be changed through it."""

    def __init__(self, whole: PassageIndex, collection: str) -> None:
        """`whole` is an index or a part of one."""
        super().__init__(whole.uri, whole.dataset, whole.manifest)
        self._fragments = whole.fragments()
        quoted = collection.replace("'", "''")
        self._condition = f"collection = '{quoted}'"

    def __len__(self) -> int:
        return sum(fragment.count_rows(self._condition) for fragment in self._fragments)

    def fragments(self) -> list[Any]:
        """Return the fragments in which such passages can be."""
        return list(self._fragments)

    def batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream `columns` of the collection's passages."""
        stored = columns_to_read(self.manifest, columns)
        for fragment in self._fragments:
            for batch in fragment.to_batches(columns=stored, batch_size=batch_size, filter=self._condition):
                yield with_vectors(self.uri, self.manifest, batch, columns)
