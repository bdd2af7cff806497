"""Random numbers that depend on their names alone: the same in every process, on every machine, in every order.

They order and sample examples; for seeds of other generators see `seeds`.
"""

from __future__ import annotations

import hashlib

import numpy as np


def draws(n: int, *names: str | int) -> np.ndarray:
    """Return n independent uniform 64-bit numbers, uint64, the start of the sequence that `names` name.

    Philox, a counter-based generator, keyed by BLAKE2b-128 of the names. Its raw output is fixed by its definition,
    which what NumPy makes of it (shuffles, choices) is not.
    """
    text = "\x1f".join(str(name) for name in names)
    key = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little")).random_raw(n)


def permutation(n: int, *names: str | int) -> np.ndarray:
    """Return a random order of 0, …, n - 1 that `names` determine, int64."""
    return np.argsort(draws(n, *names), kind="stable")
