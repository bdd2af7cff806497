"""Stateless random numbers: each follows from the hash (BLAKE2b) of its purpose, such as seed, step and part.

So a training resumes bit for bit on any worker, without generator states in its checkpoints. `draws` and `permutation`
use raw Philox output, which does not depend on library versions. Their text form of a purpose differs from that of
`seed_torch` and `draw`; do not change either, or running trainings would draw other numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_torch(*purpose: str | int) -> None:
    """Seed torch's generators of the CPU and all GPUs for `purpose`."""
    # Imported here: torch is slow to import, and sampling does not need it.
    import torch

    torch.manual_seed(derived_seed(*purpose))


def draw(options: tuple[int, ...], *purpose: str | int) -> int:
    """Return one of `options`, with equal probability."""
    generator = np.random.Generator(np.random.Philox(derived_seed(*purpose)))
    return options[int(generator.integers(len(options)))]


def derived_seed(*purpose: str | int) -> int:
    """Return a 63-bit seed for `purpose`, equal in all processes and on all platforms."""
    return _hashed(repr(purpose), 8) >> 1


def draws(n: int, *purpose: str | int) -> np.ndarray:
    """Return the first n uniform random numbers of the sequence of `purpose`, uint64 [n]."""
    return np.random.Philox(key=_hashed("\x1f".join(map(str, purpose)), 16)).random_raw(n)


def permutation(n: int, *purpose: str | int) -> np.ndarray:
    """Return a random order of 0, …, n - 1 for `purpose`, int64 [n]."""
    return np.argsort(draws(n, *purpose), kind="stable")


def _hashed(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
