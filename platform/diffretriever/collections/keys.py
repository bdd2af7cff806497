"""Sixteen bytes for a passage, and the sets by which millions of passages are compared in little memory.

The first ten bytes of a key are a hash of the id, the last six one of title and text. That two of a billion ids share a
hash has a chance of one in two million, that a changed text keeps its own one in 280 trillion.

Legend: N keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

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
    """The keys of an index's passages: 16 bytes each."""

    def __init__(self, keys_N: np.ndarray) -> None:
        """Take over an array of keys, which is sorted in place."""
        keys_N.sort()
        self._keys_N = keys_N

    def __len__(self) -> int:
        return len(self._keys_N)

    def hold(self, keys_N: np.ndarray) -> np.ndarray:
        """Return bool [N]: whether a passage is there with the same id and text."""
        return self._first_from(keys_N) == keys_N

    def hold_id(self, keys_N: np.ndarray) -> np.ndarray:
        """Return bool [N]: whether a passage is there with the same id."""
        least_N = _bytes_of(keys_N).copy()
        least_N[:, _ID_BYTES:] = 0
        found_N = self._first_from(least_N.reshape(-1).view(KEY))
        return (_bytes_of(found_N)[:, :_ID_BYTES] == least_N[:, :_ID_BYTES]).all(1)

    def _first_from(self, keys_N: np.ndarray) -> np.ndarray:
        """Return the first key that is there and no less than each; the last one where there is none."""
        if not len(self._keys_N):
            return np.full(len(keys_N), b"\xff" * KEY.itemsize, KEY)
        places_N = np.searchsorted(self._keys_N, keys_N)
        return self._keys_N[np.minimum(places_N, len(self._keys_N) - 1)]


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
