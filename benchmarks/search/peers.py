"""Other libraries' candidate indexes over the same vectors, each used as its own documentation does."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import peak_mb, serve_child
from benchmarks.search.figures import Built, Candidates, Timed
from benchmarks.search.loops import (
    K,
    brute_force,
    folder_mb,
    found_before,
    ids,
    lance,
    own_mb,
    recall,
    timed,
    vectors_from,
)
from benchmarks.search.vectors import Vectors, name
from diffretriever.index.table import PassageIndex

_REFINES = (10, 30)
_LISTS = 1024
_PROBES = ((16, 1000), (32, 2000))
"""Lists to look into, and vectors to find for each query vector."""
_RESCORED = 1000


def lancedb(folder: str, vectors: dict[str, Any], queries: int) -> Candidates:
    """Search by LanceDB's multivector index, one bit a dimension, with its own refinement."""
    made, index, size = vectors_from(vectors), PassageIndex.open(folder), folder_mb(Path(folder))
    start = time.perf_counter()
    partitions = max(1, int(np.sqrt(made.passages * made.slots)))
    index.dataset.create_index("reps", "IVF_RQ", metric="cosine", num_partitions=partitions, num_bits=1)
    index.refresh()
    built = Built(seconds=time.perf_counter() - start, mb=folder_mb(Path(folder)) - size)

    def search(refine: int) -> Callable[[np.ndarray], list[str]]:
        return lambda query_MH: lance(index, query_MH, refine_factor=refine, nprobes=32)

    runs = [_run(f"refine {refine}", search(refine), made, folder, queries) for refine in _REFINES]
    return _candidates("LanceDB IVF_RQ", built, runs)


def faiss(folder: str, vectors: dict[str, Any], queries: int) -> Candidates:
    """Search by one faiss index over all slot vectors, and score the passages met most highly from memory."""
    library: Any = import_module("faiss")
    made = vectors_from(vectors)
    stored = np.concatenate([block.reshape(-1, made.dims) for block in made.blocks()])
    start = time.perf_counter()
    lists = min(_LISTS, max(1, len(stored) // 64))
    index = library.index_factory(made.dims, f"IVF{lists},SQ8", library.METRIC_INNER_PRODUCT)
    rows = np.random.default_rng(0).choice(len(stored), min(len(stored), lists * 64), replace=False)
    index.train(stored[rows].astype(np.float32))
    for first in range(0, len(stored), 16_384):
        index.add(stored[first : first + 16_384].astype(np.float32))
    built = Built(seconds=time.perf_counter() - start, mb=len(library.serialize_index(index)) / 1e6)

    def search(probes: int, found: int) -> Callable[[np.ndarray], list[str]]:
        def one(query_MH: np.ndarray) -> list[str]:
            parameters = library.SearchParametersIVF(nprobe=probes)
            products_MT, rows_MT = index.search(query_MH, found, params=parameters)
            order = np.argsort(-products_MT, axis=None, kind="stable")
            owners = rows_MT.ravel()[order] // made.slots
            _, first = np.unique(owners, return_index=True)
            best = owners[np.sort(first)]
            best = best[best >= 0][:_RESCORED]
            taken = stored.reshape(-1, made.slots, made.dims)[best].astype(np.float32)
            ranked = brute_force(torch.from_numpy(taken).view(-1, made.dims), made.slots, query_MH)
            return [name(int(best[int(place)])) for place in ranked]

        return one

    runs = [_run(f"{p} lists, {k} a vector", search(p, k), made, folder, queries) for p, k in _PROBES]
    return _candidates("faiss IVF,SQ8", built, runs)


def _run(label: str, search: Callable[[np.ndarray], list[str]], made: Vectors, folder: str, queries: int) -> Timed:
    asked = made.queries(queries).vectors_MH.astype(np.float32).reshape(queries, made.query_slots, made.dims)
    best = ids(found_before(folder, "asked"))
    times: list[float] = []
    found = [timed(lambda q=query: search(q), times) for query in (asked[0], *asked)][1:]  # type: ignore[misc]
    return Timed(name=label, ms=times[1:], recall_10=recall(found, best, 10), recall_100=recall(found, best, K))


def _candidates(name: str, built: Built, runs: list[Timed]) -> Candidates:
    return Candidates(name=name, built=built, runs=runs, own_mb=own_mb(), peak_mb=peak_mb())


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (lancedb, faiss)})
