"""Random numbers that depend on what they are for, and on nothing that was drawn before.

A step's dropout, budgets and examples follow from the recipe's seed, the step and the part alone. So a
training resumes bit for bit without a generator's state in its checkpoints, whichever worker runs a part.

Every number comes from BLAKE2b of its purpose: a few names and numbers. `seed_torch` and `draw` start a library's own
generator from it. `draws` and `permutation`, which order and sample examples, read Philox directly, whose output is
fixed by its definition and no version of a library can change. The two write a purpose as text in different ways: this
must stay, or trainings under way would draw other numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_torch(*purpose: str | int) -> None:
    """Start torch's generators, of the CPU and of all GPUs, anew for `purpose`."""
    # What samples examples needs no torch, which is slow to import.
    import torch

    torch.manual_seed(derived_seed(*purpose))


def draw(options: tuple[int, ...], *purpose: str | int) -> int:
    """Return one of `options`, each as likely."""
    generator = np.random.Generator(np.random.Philox(derived_seed(*purpose)))
    return options[int(generator.integers(len(options)))]


def derived_seed(*purpose: str | int) -> int:
    """Return a seed of 63 bits for `purpose`: the same in every process, on every platform."""
    return _hashed(repr(purpose), 8) >> 1


def draws(n: int, *purpose: str | int) -> np.ndarray:
    """Return n independent uniform 64-bit numbers, uint64, the start of the sequence of `purpose`."""
    return np.random.Philox(key=_hashed("\x1f".join(map(str, purpose)), 16)).random_raw(n)


def permutation(n: int, *purpose: str | int) -> np.ndarray:
    """Return a random order of 0, …, n - 1 that `purpose` determines, int64."""
    return np.argsort(draws(n, *purpose), kind="stable")


def _hashed(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
