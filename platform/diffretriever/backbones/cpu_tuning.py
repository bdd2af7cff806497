"""Settings that make torch faster on a CPU, and smaller. docs/reports/2026-11-26-cpu.md has the rates (encoding, d).

In bfloat16, weights are in a blocked layout (`linear.block_weights`), and attention over long texts is two products
(`packed`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import torch

# Kernels that oneDNN keeps: 64 take 0.6 GB less after 400 batches. Read once, at a process's first product.
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")
# Of glibc's malloc.h: bytes free at the heap's end from which on they are handed back to the system
# (M_TRIM_THRESHOLD), and those of an allocation from which on it lies outside of the heap (M_MMAP_THRESHOLD).
_TRIMMED, _MAPPED = (-1, 256 << 20), (-3, 32 << 20)
# Tokens times the square of the hidden size: the multiplications in one square product of a layer.
_SMALL_PASS = 256 * 384**2


@cache
def computes_bfloat16() -> bool:
    """Whether this processor has instructions that multiply bfloat16 (AVX-512 or AMX), and oneDNN is there."""
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001
    return torch.backends.mkldnn.is_available() and has_instructions


def keep_freed_memory() -> None:
    """Have this process keep up to 256 MB of what it frees, for what it allocates next; without glibc do nothing.

    Handed back to the system, memory is zeroed and mapped again in every layer, which took a tenth of a pass.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(*_TRIMMED)
        libc.mallopt(*_MAPPED)


def is_small_pass(tokens: int, hidden_size: int) -> bool:
    """Whether a CPU computes a pass as fast in one thread as in several: 256 tokens of MiniLM, 2 of a 7B model.

    Where torch's threads spin beside another process, a query took 5 to 27 times its CPU time.
    """
    return tokens * hidden_size**2 <= _SMALL_PASS
