"""Random numbers that depend on what they are for, and on nothing that was drawn before.

A step's dropout and budgets follow from the recipe's seed, the step and the part alone. So a resumed training goes on
bit for bit without any generator's state in its checkpoints, a part gives the same whichever worker runs it, and
encoding it again, as gradient caching does, repeats its dropout.

These are seeds for the generators of torch and NumPy. Which examples a step gets follows from `draws`, whose numbers no
version of a library can change. The two turn names into keys differently, so one for both would change what trainings
under way draw.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derived_seed(*purpose: str | int) -> int:
    """Return a seed of 63 bits for `purpose`: the same in every process, on every platform."""
    digest = hashlib.blake2b(repr(purpose).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_torch(*purpose: str | int) -> None:
    """Start torch's generators, of the CPU and of all GPUs, anew for `purpose`."""
    torch.manual_seed(derived_seed(*purpose))


def draw(options: tuple[int, ...], *purpose: str | int) -> int:
    """Return one of `options`, each as likely."""
    generator = np.random.Generator(np.random.Philox(derived_seed(*purpose)))
    return options[int(generator.integers(len(options)))]


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
