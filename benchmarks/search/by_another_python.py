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


def fast_plaid(place: Path, passages: list[torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Make fast-plaid's index; return its search for one query, [1, M, H]."""
    from fast_plaid.search import FastPlaid  # type: ignore[import-not-found]

    index = FastPlaid(index=str(place), device="cpu")
    index.create(documents_embeddings=passages)
    return lambda query_1MH: index.search(queries_embeddings=query_1MH, top_k=100, n_ivf_probe=32)


def warp(place: Path, passages: list[torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Make xtr-warp-rs' index, WARP's method; return its search for one query, [1, M, H], as it sets itself."""
    from xtr_warp import XTRWarp  # type: ignore[import-not-found]

    index = XTRWarp(index=str(place))
    index.create(embeddings_source=passages, device="cpu")
    index.load(device="cpu", dtype=torch.float32)
    return lambda query_1MH: index.search(queries_embeddings=query_1MH, top_k=100)


LIBRARIES = {"fast_plaid": fast_plaid, "warp": warp}


def main(library: str, place: Path) -> None:
    """Index `passages.npy` (float16 [P, K, H]), search for `queries.npy` (float16 [Q, M, H])."""
    torch.set_num_threads(1)
    passages = [torch.from_numpy(each.astype(np.float32)) for each in np.load(place / "passages.npy")]
    queries = torch.from_numpy(np.load(place / "queries.npy").astype(np.float32))
    start = time.perf_counter()
    search = LIBRARIES[library](place / "index", passages)
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in (place / "index").rglob("*") if file.is_file()) / 1e6
    times, found = [], []
    for query in (queries[0], *queries):
        start = time.perf_counter()
        hits = search(query[None])
        times.append((time.perf_counter() - start) * 1e3)
        found.append([int(row) for row, _ in hits[0]])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    own, peak = (int(status[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "VmHWM"))
    told = {"seconds": seconds, "mb": size, "ms": times[1:], "found": found[1:], "own_mb": own, "peak_mb": peak}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
