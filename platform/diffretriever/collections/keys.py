"""Sixteen bytes for a passage, and the sets by which millions of passages are compared in little memory.

The first ten bytes of a key are a hash of the id, the last six one of title and text. That two of a billion ids share a
hash has a chance of one in two million, that a changed text keeps its own one in 280 trillion.

Legend: N keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

KEY = np.dtype("S16")
"""Keys compare as bytes; never read one as a Python value, which would lose NULs at its end."""

_ID_BYTES = 10
_TEXT_BYTES = 6
# Keys are sorted by shares, for a sort takes as much again as what is sorted.
_SHARES = 16


def passage_key(passage_id: str, digest: bytes) -> bytes:
    """Return the key of a passage with this id and `Passage.digest`; an empty one where the text does not matter."""
    return hashlib.blake2b(passage_id.encode(), digest_size=_ID_BYTES).digest() + digest[:_TEXT_BYTES].ljust(
        _TEXT_BYTES, b"\0"
    )


def keys_of(ids: Iterable[str], digests: Iterable[bytes]) -> np.ndarray:
    """Return the keys [N] of passages."""
    return np.frombuffer(b"".join(map(passage_key, ids, digests)), KEY)


class KeySet:
    """The keys of an index's passages, which have an id each: 16 bytes a passage."""

    def __init__(self, keys_N: np.ndarray) -> None:
        """Take over an array of keys, which is sorted in place."""
        keys_N.sort()
        self._keys_N = keys_N

    @classmethod
    def none(cls) -> Self:
        """Return the keys of an index without passages."""
        return cls(np.zeros(0, KEY))

    def __len__(self) -> int:
        return len(self._keys_N)

    def compare(self, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look passages up.

        Returns:
            Two arrays bool [N]: whether a passage is there with the same id, and whether with the same text as well.
        """
        if not len(self._keys_N):
            return np.zeros(len(keys_N), bool), np.zeros(len(keys_N), bool)
        least_N = _bytes_of(keys_N).copy()
        least_N[:, _ID_BYTES:] = 0
        least_keys_N = least_N.reshape(-1).view(KEY)
        # In order, for searches near each other are served by the processor's cache.
        order = np.argsort(least_keys_N)
        places_N = np.empty(len(keys_N), np.int64)
        places_N[order] = np.searchsorted(self._keys_N, least_keys_N[order])
        found_N = self._keys_N[np.minimum(places_N, len(self._keys_N) - 1)]
        has_id_N = (_bytes_of(found_N)[:, :_ID_BYTES] == least_N[:, :_ID_BYTES]).all(1)
        return has_id_N, has_id_N & (found_N == keys_N)

    def has_ids(self, ids: Sequence[str]) -> np.ndarray:
        """Return bool [N]: whether a passage is there with the id, whatever its text."""
        return self.compare(keys_of(ids, [b""] * len(ids)))[0]


def repeated_ids(keys: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Find keys whose id came before.

    Args:
        keys: arrays of keys, as if they were one.

    Returns:
        Positions of such keys, int64 ascending, and for each the position of the first key with its id.
    """
    later, first = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    starts = np.cumsum([0, *map(len, keys)])
    for share in range(_SHARES):
        members = [np.flatnonzero(_bytes_of(part)[:, 0] % _SHARES == share) for part in keys]
        ids_N = np.concatenate(
            [np.zeros(0, "S10"), *(_ids(part[own]) for part, own in zip(keys, members, strict=True))]
        )
        positions_N = np.concatenate(
            [np.zeros(0, np.int64), *(own + start for own, start in zip(members, starts, strict=False))]
        )
        order = np.argsort(ids_N, kind="stable")
        again_N = np.zeros(len(order), bool)
        again_N[1:] = ids_N[order[1:]] == ids_N[order[:-1]]
        heads_N = np.maximum.accumulate(np.where(again_N, 0, np.arange(len(order))))
        later.append(positions_N[order[again_N]])
        first.append(positions_N[order[heads_N[again_N]]])
    all_later, all_first = np.concatenate(later), np.concatenate(first)
    order = np.argsort(all_later)
    return all_later[order], all_first[order]


def _bytes_of(keys_N: np.ndarray) -> np.ndarray:
    """Return uint8 [N, 16], the same memory."""
    return keys_N.view(np.uint8).reshape(len(keys_N), KEY.itemsize)


def _ids(keys_N: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(_bytes_of(keys_N)[:, :_ID_BYTES]).reshape(-1).view(f"S{_ID_BYTES}")
