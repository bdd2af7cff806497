"""Parts of an index version: some fragments, what a filter admits, the share of a job's task or of a shard."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from diffretriever.index.table import ROWS_AT_ONCE, PassageIndex, fragment_key

_MOST_OF_A_SHARE = 1.1
"""What a shard may hold of an even share, to be given more."""


class IndexPart(PassageIndex):
    """Some passages of an index version, read as if they were all; whatever changes an index is done on the whole."""

    def __init__(self, whole: PassageIndex, fragments: Sequence[Any], condition: str | None = None) -> None:
        """`fragments` are Lance's, of `whole`; `condition` in its SQL leaves out passages of them."""
        super().__init__(whole.uri, whole.dataset, whole.manifest)
        self.whole = whole
        """What it is a part of."""
        self._fragments = list(fragments)
        self._condition = condition
        self._rows = sum(fragment.count_rows() for fragment in self._fragments)

    @classmethod
    def of_fragments(cls, whole: PassageIndex, numbers: Sequence[int]) -> IndexPart:
        """Return the part of the fragments that Lance numbers so."""
        return cls(whole, [whole.dataset.get_fragment(number) for number in numbers])

    @classmethod
    def filtered(cls, whole: PassageIndex, condition: str) -> IndexPart:
        """Return the passages that a condition of `index.filters` admits.

        Every way to search finds among them what it would find among all: the others have no numbers in the part's
        order, as deleted passages have none.

        Args:
            whole: an index, or a part of some of its fragments.
            condition: in Lance's SQL.
        """
        part = cls(whole, whole.fragments(), condition)
        addresses = [batch.column("_rowaddr").to_numpy() for batch in part.addressed_batches([], ROWS_AT_ONCE)]
        admitted = np.concatenate([np.empty(0, np.uint64), *addresses])
        part._orders[part.version] = whole.order.admitting(admitted)
        owners = set((admitted >> np.uint64(32)).tolist())
        part._fragments = [fragment for fragment in part._fragments if fragment.fragment_id in owners]
        part._rows = len(admitted)
        return part

    @property
    def is_filtered(self) -> bool:
        """Whether passages of its fragments are left out."""
        return self._condition is not None

    def __len__(self) -> int:
        return self._rows

    def fragments(self) -> list[Any]:
        """Return the fragments that passages of the part can be in, in the order given."""
        return list(self._fragments)

    def addressed_batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream as `batches` does, with `_rowaddr`."""
        if not self._fragments:
            # Lance takes none for all.
            return
        options = {"fragments": self._fragments, "filter": self._condition}
        yield from self._scan(columns, batch_size, self.dataset.scanner, **options)

    def fragment_batches(self, fragment: Any, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream columns of the part's passages in a fragment."""
        yield from self._scan(columns, batch_size, fragment.scanner, filter=self._condition)

    def batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream `columns` of the part's passages."""
        stored = self.manifest.stored_columns(columns)
        with self._readable():
            for fragment in self._fragments:
                for batch in fragment.to_batches(columns=stored, batch_size=batch_size, filter=self._condition):
                    yield self._decoded(batch, columns)


def split_fragments(index: PassageIndex, parts: int) -> dict[str, list[int]]:
    """Return at most `parts` groups of an index's fragments, of about equally many passages, by a name for each."""
    fragments = index.fragments()
    rows = np.array([fragment.count_rows() for fragment in fragments], np.int64)
    middles = np.cumsum(rows) - rows / 2
    numbers = np.minimum(middles * parts // max(1, rows.sum()), parts - 1).astype(int)
    groups = [[f for f, number in zip(fragments, numbers, strict=True) if number == part] for part in range(parts)]
    return {_name(group): [f.fragment_id for f in group] for group in groups if group}


def shard_fragments(index: PassageIndex, shards: int) -> list[list[int]]:
    """Return the fragments of each of so many shards, from the version alone: the same in every process.

    A fragment goes to the shard that its name prefers, of those that hold little more than their share of all that was
    written before it. So what is appended moves nothing, what compaction and deletions take away moves little, and
    shards are about equally large.
    """
    owned: list[list[int]] = [[] for _ in range(shards)]
    rows = np.zeros(shards, np.int64)
    # New fragments have higher numbers. Rows count as they were written: deletions move nothing.
    for fragment in sorted(index.fragments(), key=lambda each: int(each.fragment_id)):
        key = fragment_key(fragment)
        free = [shard for shard in range(shards) if rows[shard] * shards <= _MOST_OF_A_SHARE * rows.sum()]
        chosen = max(free, key=lambda shard: _preference(key, shard))
        owned[chosen].append(fragment.fragment_id)
        rows[chosen] += fragment.physical_rows
    return owned


def _preference(key: str, shard: int) -> bytes:
    """Return a value that ranks shards for a fragment (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return hashlib.blake2b(f"{key} {shard}".encode(), digest_size=8).digest()


def _name(fragments: Sequence[Any]) -> str:
    keys = " ".join(fragment_key(fragment) for fragment in fragments)
    return hashlib.blake2b(keys.encode(), digest_size=8).hexdigest()
