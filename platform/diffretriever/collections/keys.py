"""Passage keys of 16 bytes, which select the passages to encode from millions in little memory.

A key is a 10-byte hash of the id and a 6-byte hash of the content. Among a billion ids, two share a hash with a
probability of one in two million; a changed text keeps its hash with one in 280 trillion.

Legend: N keys, I indexes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.collections.records import Passage, in_blocks
from diffretriever.schemas.encode import EncodeJob

KEY = np.dtype("S16")
"""Compare keys as bytes: as Python values they lose trailing NULs."""

_ID_BYTES = 10
_TEXT_BYTES = 6
_CONFLICTS_NAMED = 5


def passage_key(passage_id: str, digest: bytes) -> bytes:
    """Return the key of a passage with this id and `Passage.digest`; an empty digest if the text does not matter."""
    return hashlib.blake2b(passage_id.encode(), digest_size=_ID_BYTES).digest() + digest[:_TEXT_BYTES].ljust(
        _TEXT_BYTES, b"\0"
    )


def keys_of(ids: Iterable[str], digests: Iterable[bytes]) -> np.ndarray:
    """Return the keys [N] of passages with these ids and digests."""
    return np.frombuffer(b"".join(map(passage_key, ids, digests)), KEY)


def keys_of_passages(passages: Sequence[Passage]) -> np.ndarray:
    """Return the keys [N] of passages."""
    return keys_of((passage.id for passage in passages), (passage.digest for passage in passages))


class KeySet:
    """The keys of an index's passages, 16 bytes each."""

    def __init__(self, keys_N: np.ndarray) -> None:
        """Take ownership of an array of keys and sort it in place."""
        keys_N.sort()
        self._keys_N = keys_N

    @classmethod
    def none(cls) -> Self:
        """Return an empty key set."""
        return cls(np.zeros(0, KEY))

    def __len__(self) -> int:
        return len(self._keys_N)

    def compare(self, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays, bool [N]: whether the set has a passage's id, and whether it has id and text."""
        if not len(self._keys_N):
            return np.zeros(len(keys_N), bool), np.zeros(len(keys_N), bool)
        lowest_N = _bytes_of(keys_N).copy()
        lowest_N[:, _ID_BYTES:] = 0
        lowest_keys_N = lowest_N.reshape(-1).view(KEY)
        # Sorted queries hit the processor's cache.
        order = np.argsort(lowest_keys_N)
        positions_N = np.empty(len(keys_N), np.int64)
        positions_N[order] = np.searchsorted(self._keys_N, lowest_keys_N[order])
        nearest_N = self._keys_N[np.minimum(positions_N, len(self._keys_N) - 1)]
        has_id_N = (_bytes_of(nearest_N)[:, :_ID_BYTES] == lowest_N[:, :_ID_BYTES]).all(1)
        return has_id_N, has_id_N & (nearest_N == keys_N)

    def has_ids(self, ids: Sequence[str]) -> np.ndarray:
        """Return bool [N]: whether the set has a passage with the id, with any text."""
        return self.compare(keys_of(ids, [b""] * len(ids)))[0]


def repeated_ids(keys: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Find repeated ids.

    Returns two int64 arrays of positions in the concatenated keys: of each repeated key, ascending, and of the first
    key with its id.
    """
    ids_N = np.concatenate([np.zeros(0, f"S{_ID_BYTES}"), *map(_ids, keys)])
    order = np.argsort(ids_N, kind="stable")
    is_repeated_N = np.zeros(len(order), bool)
    is_repeated_N[1:] = ids_N[order[1:]] == ids_N[order[:-1]]
    heads_N = np.maximum.accumulate(np.where(is_repeated_N, 0, np.arange(len(order))))
    later, first = order[is_repeated_N], order[heads_N[is_repeated_N]]
    by_position = np.argsort(later)
    return later[by_position], first[by_position]


def _bytes_of(keys_N: np.ndarray) -> np.ndarray:
    """Return uint8 [N, 16], the same memory."""
    return keys_N.view(np.uint8).reshape(len(keys_N), KEY.itemsize)


def _ids(keys_N: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(_bytes_of(keys_N)[:, :_ID_BYTES]).reshape(-1).view(f"S{_ID_BYTES}")


@dataclass
class PassageSelection:
    """Selects the passages of a collection that at least one index lacks."""

    job: EncodeJob
    present: Sequence[KeySet]
    """The keys of each index."""
    already_there: int = 0
    skipped: int = 0
    replaced: int = 0
    conflicts: int = 0
    keys: list[np.ndarray] = field(default_factory=list)
    """Keys of all passages, if the job syncs."""

    def __call__(self, keys_N: np.ndarray) -> np.ndarray:
        """Return bool [N], which passages to encode, and update the counts."""
        changed_N, same_IN = self._compare(keys_N)
        missing_N: np.ndarray = np.logical_not(same_IN.all(0))
        self.already_there += int((~missing_N).sum())
        n_changed = int(changed_N.sum())
        if self.job.on_existing == "replace":
            self.replaced += n_changed
        elif self.job.on_existing == "skip":
            self.skipped += n_changed
            missing_N &= ~changed_N
        else:
            self.conflicts += n_changed
        if self.job.sync:
            self.keys.append(keys_N)
        return missing_N

    def _compare(self, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether any index has the passage with another text, bool [N], and each with the same, [I, N]."""
        compared = (keys.compare(keys_N) for keys in self.present)
        has_id_IN, same_IN = (np.array(flags) for flags in zip(*compared, strict=True))
        changed_N: np.ndarray = np.asarray((has_id_IN & ~same_IN).any(0))
        return changed_N, same_IN

    def gone(self, rows: Iterable[pa.RecordBatch], collection: str) -> list[str]:
        """Return the ids of a collection that the index has and the collection no longer contains.

        `rows` are the index's, with `id` and `collection`.
        """
        current, missing = KeySet(np.concatenate([np.zeros(0, KEY), *self.keys])), list[str]()
        for batch in rows:
            ids = batch.filter(pc.equal(batch.column("collection"), collection)).column("id").to_pylist()
            missing += compress(ids, ~current.has_ids(ids))
        return missing

    def count_held(self, ids: Sequence[str]) -> int:
        """Return the number of these ids that any index has."""
        return int(np.array([keys.has_ids(ids) for keys in self.present]).any(0).sum())

    def refuse_conflicts(self, chosen: Iterator[Passage]) -> None:
        """Raise `ValueError` if passages to encode have changed and the job does not allow that."""
        if self.conflicts == 0:
            return
        changed = (
            passage.id
            for block in in_blocks(chosen)
            for passage in compress(block, self._compare(keys_of_passages(block))[0])
        )
        ids = list(islice(changed, _CONFLICTS_NAMED))
        names = ", ".join(f"'{i}'" for i in ids) + (", …" if self.conflicts > _CONFLICTS_NAMED else "")
        raise ValueError(
            f"{self.conflicts} passages are in {self.job.index} with another text or other metadata ({names}): use "
            "--on-existing replace to replace such passages, or --on-existing skip to leave them as they are"
        )
