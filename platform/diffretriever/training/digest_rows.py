"""Distinct digests, numbered in the order in which they first come: what makes a text be stored once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffretriever.kernels.digest_rows import number, place

_FIRST_ROWS = 1 << 14


class DigestRows:
    """Numbers 16-byte digests; 24 to 48 bytes of memory each."""

    def __init__(self) -> None:
        self._count = 0
        self._stored_R2 = np.empty((_FIRST_ROWS, 2), np.uint64)
        self._slots_S = np.full(2 * _FIRST_ROWS, -1, np.int32)

    def __len__(self) -> int:
        return self._count

    def add(self, digests: Sequence[bytes]) -> np.ndarray:
        """Return the row of each digest, int64 [N]; rows from the former length on are new, in the order given."""
        digests_N2 = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
        assert len(digests_N2) == len(digests), "a digest has 16 bytes"
        self._make_room(self._count + len(digests))
        rows_N = np.empty(len(digests), np.int64)
        self._count = number(digests_N2, self._slots_S, self._stored_R2, self._count, rows_N)
        return rows_N

    def _make_room(self, wanted: int) -> None:
        if wanted <= len(self._stored_R2):
            return
        capacity = 1 << (wanted - 1).bit_length()
        stored_R2 = np.empty((capacity, 2), np.uint64)
        stored_R2[: self._count] = self._stored_R2[: self._count]
        self._stored_R2 = stored_R2
        self._slots_S = np.full(2 * capacity, -1, np.int32)
        place(self._stored_R2, self._count, self._slots_S)
