"""How fast the exact scan reads 8-bit codes here: by the scan itself, on made-up codes larger than most caches.

Legend: M query vectors, N passage vectors, P passages, H hidden size.
"""

from __future__ import annotations

import time

import numpy as np

from diffretriever.kernels.maxsim import scan

_PROBE_BYTES = 64 << 20
_LEAST_REPEATS = 3
_SECONDS = 0.5


def scan_rate(query_vectors: int, passage_vectors: int, hidden_size: int) -> float:
    """Return the bytes of codes a second that one core scans for a query, by its own time, as of an idle machine.

    Memory sets the limit where a query has few vectors, arithmetic where it has many.
    """
    rng = np.random.default_rng(0)
    n_passages = max(1, _PROBE_BYTES // (passage_vectors * hidden_size))
    codes_NH = rng.integers(-127, 128, (n_passages * passage_vectors, hidden_size), np.int8)
    scales_N = np.ones(len(codes_NH), np.float32)
    offsets = np.arange(0, len(codes_NH) + 1, passage_vectors)
    query_MH = rng.integers(-99, 100, (query_vectors, hidden_size), np.int16)
    scores_P = np.empty(n_passages, np.float32)
    scales_M = np.ones(query_vectors, np.float32)
    scan(codes_NH[:0], scales_N[:0], offsets[:1], query_MH, scales_M, scores_P[:0])
    seconds: list[float] = []
    while len(seconds) < _LEAST_REPEATS or sum(seconds) < _SECONDS:
        start = time.thread_time()
        scan(codes_NH, scales_N, offsets, query_MH, scales_M, scores_P)
        seconds.append(time.thread_time() - start)
    return (codes_NH.nbytes + scales_N.nbytes) / min(seconds)
