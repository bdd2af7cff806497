"""Parts of an index version: a shard of its fragments, or the passages that match a filter."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffretriever.index.table import ROWS_AT_ONCE, PassageIndex, fragment_key

_MAX_SHARE = 1.1
"""A shard above this multiple of the mean size gets no further fragment."""


class IndexPart(PassageIndex):
    """Some passages of an index version, read-only."""

    def __init__(self, index: PassageIndex, fragments: Sequence[Any], condition: str | None = None) -> None:
        """Select the passages in Lance fragments that match a condition in Lance's SQL."""
        super().__init__(index.uri, index.dataset, index.manifest)
        self._fragments = list(fragments)
        self._condition = condition
        self._rows = sum(fragment.count_rows() for fragment in fragments)

    @classmethod
    def of_fragments(cls, index: PassageIndex, numbers: Sequence[int]) -> IndexPart:
        """Return the part with these fragment numbers."""
        return cls(index, [index.dataset.get_fragment(number) for number in numbers])

    @classmethod
    def filtered(cls, index: PassageIndex, condition: str) -> IndexPart:
        """Return the passages that match a condition from `index.filters`.

        Other passages have no number in the part's order, like deleted ones, so every search skips them.
        """
        part = cls(index, index.fragments(), condition)
        addresses = [batch.column("_rowaddr").to_numpy() for batch in part.addressed_batches([], ROWS_AT_ONCE)]
        admitted = np.concatenate([np.empty(0, np.uint64), *addresses])
        part._orders[part.version] = index.order.admitting(admitted)
        owners = set((admitted >> np.uint64(32)).tolist())
        part._fragments = [fragment for fragment in part.fragments() if fragment.fragment_id in owners]
        part._rows = len(admitted)
        return part

    def __len__(self) -> int:
        return self._rows


def split_fragments(index: PassageIndex, parts: int) -> dict[str, list[int]]:
    """Return the fragment numbers of up to `parts` shards, by a name derived from their content."""
    keys = {fragment.fragment_id: fragment_key(fragment) for fragment in index.fragments()}
    shards = [numbers for numbers in shard_fragments(index, parts) if numbers]
    names = [" ".join(keys[number] for number in numbers).encode() for numbers in shards]
    return {hashlib.blake2b(n, digest_size=8).hexdigest(): numbers for n, numbers in zip(names, shards, strict=True)}


def shard_fragments(index: PassageIndex, shards: int) -> list[list[int]]:
    """Assign fragments to shards; deterministic for a version, so all processes agree.

    A fragment goes to its preferred shard among those near or below their share of the earlier rows. So appending moves
    no fragment, compaction and deletions move few, and shards have similar sizes.
    """
    owned: list[list[int]] = [[] for _ in range(shards)]
    rows = np.zeros(shards, np.int64)
    # New fragments have higher numbers. Deleted rows count, so that deletions move nothing.
    for fragment in sorted(index.fragments(), key=lambda item: int(item.fragment_id)):
        key = fragment_key(fragment)
        free = [shard for shard in range(shards) if rows[shard] * shards <= _MAX_SHARE * rows.sum()]
        chosen = max(free, key=lambda shard: _preference(key, shard))
        owned[chosen].append(fragment.fragment_id)
        rows[chosen] += fragment.physical_rows
    return owned


def _preference(key: str, shard: int) -> bytes:
    """Rank of a shard for a fragment (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return hashlib.blake2b(f"{key} {shard}".encode(), digest_size=8).digest()
