"""Parts of an index version: some of its fragments, such as a shard, or the passages that a filter admits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffretriever.index.table import ROWS_AT_ONCE, PassageIndex, fragment_key

_MOST_OF_A_SHARE = 1.1
"""A shard above this share of the mean gets no further fragment."""


class IndexPart(PassageIndex):
    """Some passages of an index version, for reading."""

    def __init__(self, whole: PassageIndex, fragments: Sequence[Any], condition: str | None = None) -> None:
        """Select the passages of Lance's fragments that meet a condition in Lance's SQL."""
        super().__init__(whole.uri, whole.dataset, whole.manifest)
        self._fragments = list(fragments)
        self._condition = condition
        self._rows = sum(fragment.count_rows() for fragment in fragments)

    @classmethod
    def of_fragments(cls, whole: PassageIndex, numbers: Sequence[int]) -> IndexPart:
        """Return the part of the fragments of these numbers."""
        return cls(whole, [whole.dataset.get_fragment(number) for number in numbers])

    @classmethod
    def filtered(cls, whole: PassageIndex, condition: str) -> IndexPart:
        """Return the passages of an index, or of a part of it, that a condition of `index.filters` admits.

        Passages that are left out have no number in the part's order, as deleted passages, so that every search skips
        them.
        """
        part = cls(whole, whole.fragments(), condition)
        addresses = [batch.column("_rowaddr").to_numpy() for batch in part.addressed_batches([], ROWS_AT_ONCE)]
        admitted = np.concatenate([np.empty(0, np.uint64), *addresses])
        part._orders[part.version] = whole.order.admitting(admitted)
        owners = set((admitted >> np.uint64(32)).tolist())
        part._fragments = [fragment for fragment in part.fragments() if fragment.fragment_id in owners]
        part._rows = len(admitted)
        return part

    def __len__(self) -> int:
        return self._rows


def split_fragments(index: PassageIndex, parts: int) -> dict[str, list[int]]:
    """Return the fragments of up to `parts` shards, by a name made of their content."""
    keys = {fragment.fragment_id: fragment_key(fragment) for fragment in index.fragments()}
    shards = [numbers for numbers in shard_fragments(index, parts) if numbers]
    names = [" ".join(keys[number] for number in numbers).encode() for numbers in shards]
    return {hashlib.blake2b(n, digest_size=8).hexdigest(): numbers for n, numbers in zip(names, shards, strict=True)}


def shard_fragments(index: PassageIndex, shards: int) -> list[list[int]]:
    """Return the fragments of each shard, which depend on the version only: they are the same in every process.

    A fragment goes to its preferred shard among those with little more than their share of the rows before it. So
    appending moves no fragment, compaction and deletions move few, and shards have about the same size.
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
