"""Settings that make torch faster and smaller on a CPU; measured in docs/reports/2026-11-26-cpu.md (encoding, d)."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import torch

# Size of oneDNN's kernel cache, read at the first product: 64 saves 0.6 GB after 400 batches.
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")
# Options of glibc's mallopt and their values in bytes: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
_TRIMMED, _MAPPED = (-1, 256 << 20), (-3, 32 << 20)
# Tokens times the square of the hidden size: multiplications in a square product of a layer.
_SMALL_PASS = 256 * 384**2


@cache
def computes_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products (AVX-512 or AMX), and torch has oneDNN."""
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001
    return torch.backends.mkldnn.is_available() and has_instructions


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MB of freed memory in the process; without glibc, do nothing.

    Otherwise, memory is mapped and zeroed again in every layer, which took a tenth of a pass.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(*_TRIMMED)
        libc.mallopt(*_MAPPED)


def is_small_pass(tokens: int, hidden_size: int) -> bool:
    """Whether one CPU thread is as fast as several for a pass: up to 256 tokens of MiniLM, 2 of a 7B model.

    On a shared machine, spinning threads made a query take 5 to 27 times its CPU time.
    """
    return tokens * hidden_size**2 <= _SMALL_PASS
