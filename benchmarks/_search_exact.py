"""The exact searches that benchmarks/search.py compares, in turn in one process."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from benchmarks._common import serve_child
from benchmarks._search_data import MadeUpVectors
from benchmarks._search_figures import Timed
from benchmarks._search_ways import (
    K,
    brute_force,
    coded_of,
    found_before,
    ids,
    lance,
    queries_of,
    row,
    stream_of,
    timed,
    vectors_of,
)
from diffretriever.index.table import PassageIndex
from diffretriever.search.dense.coded import CodedScan

_BATCH = 32
_TURN = 3
"""Queries that a way answers in a row after one that is not timed, for the seconds that others take leave it cold."""
_BF16_VALUES = 1 << 30
"""More would not fit into memory beside the same in fp32."""


def exact(folder: str, vectors: dict[str, Any], queries: int, used: int) -> list[dict[str, Any]]:
    """Search in all exact ways in turn, and with one product of bfloat16, which is not exact, by the first queries."""
    made, index = MadeUpVectors.model_validate(vectors), PassageIndex.open(folder)
    asked, best = queries_of(made, queries)[0], ids(found_before(folder, "asked"))
    blocks = [torch.from_numpy(block.astype(np.float32)).view(-1, made.dims) for block in made.blocks()]
    single = torch.cat(blocks)
    del blocks
    stream, coded = stream_of(index, made.slots), coded_of(index, made.slots)
    ways = {
        "torch fp32, all in memory": lambda q: brute_force(single, made.slots, vectors_of(q)),
        "LanceDB flat": lambda q: lance(index, vectors_of(q), use_index=False),
        "ours: stream": lambda q: ids(stream.search(q, K))[0],
        "ours: codes": lambda q: ids(coded.search(q, K))[0],
    }
    if single.numel() <= _BF16_VALUES:
        half = single.bfloat16()
        ways["torch bf16, all in memory"] = lambda q: brute_force(half, made.slots, vectors_of(q))
    times: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, list[list[str]]] = {way: [] for way in ways}
    singles = [asked.take(np.array([i])) for i in range(used)]
    for start in range(0, used, _TURN):
        for way, search in ways.items():
            search(singles[start])
            for query in singles[start : start + _TURN]:
                found[way].append(timed(lambda s=search, q=query: s(q), times[way]))  # type: ignore[misc]
        sys.stderr.write(".")
    rows = [row(way, times[way], found[way], best) for way in ways]
    rows += _batched(coded, single, made)
    return [row.model_dump() for row in rows]


def _batched(coded: CodedScan, single: torch.Tensor, made: MadeUpVectors) -> list[Timed]:
    """Return times a query where 32 are asked at once: torch in fp32 first."""
    asked, rows = made.queries(_BATCH, seed=2), []
    best = ids(coded.search(asked, K))
    ours: list[float] = []
    for _ in range(3):
        timed(lambda: coded.search(asked, K), ours)
    vectors_MH = torch.from_numpy(vectors_of(asked))
    theirs: list[float] = []
    for _ in range(3):
        timed(lambda: _all_at_once(single, vectors_MH, made), theirs)
    for way, times in ((f"torch fp32, {_BATCH} at once", theirs), (f"ours: codes, {_BATCH} at once", ours)):
        rows.append(row(way, [each / _BATCH for each in times], best, best))
    return rows


def _all_at_once(single: torch.Tensor, vectors_MH: torch.Tensor, made: MadeUpVectors) -> None:
    for block in single.split(made.slots * 8192):
        (block @ vectors_MH.T).view(-1, made.slots, len(vectors_MH)).amax(dim=1).view(
            -1, _BATCH, made.query_slots
        ).mean(2)


if __name__ == "__main__":
    serve_child({"exact": exact})
