"""The loops that benchmarks/search.py compares, each run in a process of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import peak_mb, serve_child
from benchmarks._search_data import MadeUpVectors
from benchmarks._search_figures import Built, Candidates, Timed
from benchmarks._search_ways import (
    K,
    coded_of,
    folder_mb,
    found_before,
    ids,
    own_mb,
    queries_of,
    row,
    stream_of,
    timed,
)
from diffretriever.index.table import PassageIndex
from diffretriever.search.dense import PROPOSERS
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.calibrate import choose_count, counts_to_try
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.codes import build_codes, open_segments

_TARGET = 0.99


def prepare(folder: str, vectors: dict[str, Any], queries: int) -> Built:
    """Write the index and its codes, and what an exact search finds, for the others to compare with."""
    made = MadeUpVectors.model_validate(vectors)
    index = made.write(folder)
    start = time.perf_counter()
    build_codes(index)
    built = Built(seconds=time.perf_counter() - start, mb=folder_mb(Path(folder) / "codes"))
    search, (asked, sample) = coded_of(index, made.slots), queries_of(made, queries)
    for file, each in (("asked", asked), ("sample", sample)):
        (Path(folder) / f"{file}.json").write_text(json.dumps(search.search(each, K)), encoding="utf-8")
    return built


def candidates(folder: str, vectors: dict[str, Any], proposer: str, budgets: list[int], queries: int) -> Candidates:
    """Search through one candidate index, made already, at the budget that its calibration asks for and at others."""
    made, index = MadeUpVectors.model_validate(vectors), PassageIndex.open(folder)
    asked, sample = queries_of(made, queries)
    opened = PROPOSERS[proposer].open(index, open_segments(index)[0])  # type: ignore[index]
    tried = counts_to_try(K, made.passages)
    chosen, _ = choose_count(opened, sample, found_before(folder, "sample"), tried, _TARGET)
    best = ids(found_before(folder, "asked"))
    scan = coded_of(index, made.slots)
    runs: list[Timed] = []
    for budget in [chosen, *budgets]:
        limited = CandidateSearch(opened, [], stream_of(index, made.slots), budget)
        search: DenseSearch = limited if budget < made.passages else scan
        times: list[float] = []
        singles = [asked.take(np.array([i])) for i in range(queries)]
        found = [ids(timed(lambda s=search, q=query: s.search(q, K), times))[0] for query in singles[:1] + singles]  # type: ignore[misc]
        kind = "calibrated: " if not runs else ""
        label = f"{kind}{budget:,}" if budget < made.passages else f"{kind}all"
        runs.append(row(label, times[1:], found[1:], best))
    return Candidates(name=f"ours: {proposer}", built=None, runs=runs, own_mb=own_mb(), peak_mb=peak_mb())


def build(folder: str, proposer: str) -> Built:
    """Make one candidate index."""
    index, size = PassageIndex.open(folder), folder_mb(Path(folder))
    start = time.perf_counter()
    PROPOSERS[proposer].build(index, open_segments(index)[0])  # type: ignore[index]
    return Built(seconds=time.perf_counter() - start, mb=folder_mb(Path(folder)) - size)


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (prepare, candidates, build)})
