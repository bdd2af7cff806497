"""Run by an interpreter that has fast-plaid or xtr-warp-rs, and nothing of this project: index, search, print JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

_QUANTILES = 16_000_000
"""Most numbers that torch finds quantiles of."""

Searches = dict[str, Callable[[torch.Tensor], Any]]
"""By their settings: each takes one query, [1, M, H]."""


def fast_plaid(place: Path, passages: list[torch.Tensor]) -> Searches:
    """Make fast-plaid's index; return its searches."""
    from fast_plaid.search import FastPlaid  # type: ignore[import-not-found]

    index = FastPlaid(index=str(place), device="cpu")
    index.create(documents_embeddings=passages)
    return {"32 probes": lambda query_1MH: index.search(queries_embeddings=query_1MH, top_k=100, n_ivf_probe=32)}


def warp(place: Path, passages: list[torch.Tensor]) -> Searches:
    """Make xtr-warp-rs' index, WARP's method; return its searches.

    Its own threshold of centroids' scores, .45, is for other vectors: here it leaves a query some five passages. The
    wide search has none, and probes until it names a hundred. Its codec is trained on no more vectors than torch has
    quantiles of.
    """
    from xtr_warp import XTRWarp  # type: ignore[import-not-found]

    index = XTRWarp(index=str(place))
    index.create(embeddings_source=passages, device="cpu", codec_sample_max_tokens=_QUANTILES // passages[0].shape[1])
    index.load(device="cpu", dtype=torch.float32)
    every = sum(len(each) for each in passages)
    wide = {"nprobe": 128, "centroid_score_threshold": 0.0, "bound": 2048, "max_candidates": every}
    return {
        "as it sets itself": lambda query_1MH: index.search(queries_embeddings=query_1MH, top_k=100),
        "128 probes": lambda query_1MH: index.search(queries_embeddings=query_1MH, top_k=100, **wide),
    }


LIBRARIES = {"fast_plaid": fast_plaid, "warp": warp}


def main(library: str, place: Path) -> None:
    """Index `passages.npy` (float16 [P, K, H]), search for `queries.npy` (float16 [Q, M, H])."""
    torch.set_num_threads(1)
    passages = [torch.from_numpy(each.astype(np.float32)) for each in np.load(place / "passages.npy")]
    queries = torch.from_numpy(np.load(place / "queries.npy").astype(np.float32))
    start = time.perf_counter()
    searches = LIBRARIES[library](place / "index", passages)
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in (place / "index").rglob("*") if file.is_file()) / 1e6
    runs = {settings: timed(search, queries) for settings, search in searches.items()}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    own, peak = (int(status[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "VmHWM"))
    print(json.dumps({"seconds": seconds, "mb": size, "runs": runs, "own_mb": own, "peak_mb": peak}))


def timed(search: Callable[[torch.Tensor], Any], queries_QMH: torch.Tensor) -> dict[str, Any]:
    """Milliseconds and rows of each query; the first is asked once before."""
    times, found = [], []
    for query_MH in (queries_QMH[0], *queries_QMH):
        start = time.perf_counter()
        hits = search(query_MH[None])
        times.append((time.perf_counter() - start) * 1e3)
        found.append([int(row) for row, _ in hits[0]])
    return {"ms": times[1:], "found": found[1:]}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
