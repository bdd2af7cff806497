"""Run by an interpreter that has fast-plaid, and nothing of this project: index, search, say what came out as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from fast_plaid import search  # type: ignore[import-not-found]


def main(place: Path) -> None:
    """Index `passages.npy` (float16 [P, K, H]), search for `queries.npy` (float16 [Q, M, H])."""
    torch.set_num_threads(1)
    passages = [torch.from_numpy(each.astype(np.float32)) for each in np.load(place / "passages.npy")]
    queries = torch.from_numpy(np.load(place / "queries.npy").astype(np.float32))
    index = search.FastPlaid(index=str(place / "index"), device="cpu")
    start = time.perf_counter()
    index.create(documents_embeddings=passages)
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in (place / "index").rglob("*") if file.is_file()) / 1e6
    times, found = [], []
    for query in (queries[0], *queries):
        start = time.perf_counter()
        hits = index.search(queries_embeddings=query[None], top_k=100, n_ivf_probe=32)
        times.append((time.perf_counter() - start) * 1e3)
        found.append([int(row) for row, _ in hits[0]])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    own, peak = (int(status[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "VmHWM"))
    print(
        json.dumps(
            {"seconds": seconds, "mb": size, "ms": times[1:], "found": found[1:], "own_mb": own, "peak_mb": peak}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
