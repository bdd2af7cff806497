"""Some passages of an index version, read as if they were all: what one of several searchers owns, or a filter left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.index.vectors import columns_to_read, with_vectors


class IndexPart(PassageIndex):
    """A reader of a part; whatever changes an index is done on the whole."""

    def __init__(self, whole: PassageIndex, fragments: Sequence[Any], condition: str | None = None) -> None:
        """`fragments` are Lance's, of `whole`; `condition` in its SQL leaves out passages of them."""
        super().__init__(whole.uri, whole.dataset, whole.manifest)
        self._fragments = list(fragments)
        self._condition = condition

    @classmethod
    def of_fragments(cls, whole: PassageIndex, numbers: Sequence[int]) -> IndexPart:
        """Return the part of the fragments that Lance numbers so."""
        return cls(whole, [whole.dataset.get_fragment(number) for number in numbers])

    @classmethod
    def of_collection(cls, whole: PassageIndex, collection: str) -> IndexPart:
        """Return the passages of one collection; `whole` is an index or a part of one."""
        quoted = collection.replace("'", "''")
        return cls(whole, whole.fragments(), f"collection = '{quoted}'")

    def __len__(self) -> int:
        return sum(fragment.count_rows(self._condition) for fragment in self._fragments)

    def fragments(self) -> list[Any]:
        """Return the fragments that passages of the part can be in, in the order given."""
        return list(self._fragments)

    def batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream `columns` of the part's passages."""
        stored = columns_to_read(self.manifest, columns)
        for fragment in self._fragments:
            for batch in fragment.to_batches(columns=stored, batch_size=batch_size, filter=self._condition):
                yield with_vectors(self.uri, self.manifest, batch, columns)


def split_fragments(index: PassageIndex, parts: int) -> dict[str, list[int]]:
    """Return at most `parts` groups of an index's fragments, of about equally many passages, by a name for each."""
    fragments = index.fragments()
    rows = np.array([fragment.count_rows() for fragment in fragments], np.int64)
    middles = np.cumsum(rows) - rows / 2
    numbers = np.minimum(middles * parts // max(1, rows.sum()), parts - 1).astype(int)
    groups = [[f for f, number in zip(fragments, numbers, strict=True) if number == part] for part in range(parts)]
    return {_name(group): [f.fragment_id for f in group] for group in groups if group}


def _name(fragments: Sequence[Any]) -> str:
    keys = " ".join(fragment_key(fragment) for fragment in fragments)
    return hashlib.blake2b(keys.encode(), digest_size=8).hexdigest()
