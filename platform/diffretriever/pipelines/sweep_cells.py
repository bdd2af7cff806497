"""The cells of a sweep that share an index: all of them searched together, a run for each written whole.

A cell is a split and a K_q on the index of one K_p. `cell.json` beside its runs says what they were made from, and is
written last: a cell that has it for the same state, and the runs asked for, is not searched again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffretriever.backbones.device import resolve_device
from diffretriever.collections import Query, write_run
from diffretriever.encoders.representations import Representations
from diffretriever.files import write_text
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.sweep_pooled import search_pooled
from diffretriever.pipelines.sweep_queries import QueryStore
from diffretriever.scoring.topk import Hits
from diffretriever.search.cut import kept_hits, searched_depth
from diffretriever.search.dense import open_dense
from diffretriever.search.neural import FUSION_DEPTH, ranked
from diffretriever.search.sparse import open_sparse
from schemas.budget import Budget
from schemas.jobs import SearchOptions
from schemas.sweep import SweepMode
from schemas.sweep_job import SweepJob

_STATE = "cell.json"


@dataclass(frozen=True)
class Cell:
    """A split searched with one budget."""

    split: str
    budget: Budget
    folder: Path
    """Where its runs lie."""
    state: str
    """What the runs depend on, as a text to compare."""

    def is_done(self, modes: Sequence[SweepMode]) -> bool:
        """Return whether the runs of these modes are there, made from the same state."""
        file = self.folder / _STATE
        same = file.is_file() and json.loads(file.read_text("utf-8")) == {"state": self.state}
        return same and all((self.folder / f"{mode}.trec").is_file() for mode in modes)


def cells_of(index: PassageIndex, passage_budget: int, store: QueryStore, job: SweepJob) -> list[Cell]:
    """Return the cells on an index: all K_q of the job with all splits."""
    manifest = index.manifest
    made_of = [manifest.fingerprint, manifest.created, index.version, job.top_k, job.exclude_self]
    cells = []
    for number in job.query_budgets:
        budget = Budget(number, passage_budget)
        for split in store.queries:
            text = json.dumps([*made_of, number, store.state(split)])
            state = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            cells.append(Cell(split, budget, job.output / split / "runs" / str(budget), state))
    return cells


def search_cells(
    index: PassageIndex, cells: list[Cell], store: QueryStore, job: SweepJob, say: Callable[[str], None]
) -> int:
    """Search the cells, as many as may share a pass at once; return the number of passes."""
    rounds = list(_rounds(cells, store, job.queries_at_once))
    for each in rounds:
        count = sum(len(store.queries[cell.split]) for cell in each)
        say(f"  {len(each)} cells in one pass: {count:,} encoded queries over {len(index):,} passages")
        _search_round(index, each, store, job)
    return len(rounds)


def _rounds(cells: list[Cell], store: QueryStore, at_once: int) -> Iterator[list[Cell]]:
    """Yield groups of whole cells with at most `at_once` queries together; a larger cell is a group of its own."""
    group: list[Cell] = []
    count = 0
    for cell in cells:
        size = len(store.queries[cell.split])
        if group and count + size > at_once:
            yield group
            group, count = [], 0
        group.append(cell)
        count += size
    if group:
        yield group


def _search_round(index: PassageIndex, cells: list[Cell], store: QueryStore, job: SweepJob) -> None:
    queries = Representations.concatenate([store.read(cell.split, cell.budget.query) for cell in cells])
    lists = _lists(index, queries, job)
    start = 0
    for cell in cells:
        asked = store.queries[cell.split]
        own = {name: hits[start : start + len(asked)] for name, hits in lists.items()}
        start += len(asked)
        _write(cell, asked, own, job)


def _lists(index: PassageIndex, queries: Representations, job: SweepJob) -> dict[str, Hits]:
    """Return the lists that the modes are made of: one pass over the index's vectors, one over its impacts."""
    depth = searched_depth(job.top_k, exclude_self=job.exclude_self)
    fused = max(depth, FUSION_DEPTH) if "hybrid" in job.modes else depth
    device = resolve_device(job.device)
    options = SearchOptions(index=index.uri, device=job.device, memory_mb=job.memory_mb)
    lists: dict[str, Hits] = {}
    if {"dense", "hybrid"} & set(job.modes):
        lists["dense"] = open_dense(index, options, device).search(queries, fused)
    if {"sparse", "hybrid"} & set(job.modes):
        lists["sparse"] = open_sparse(index, options).search(queries, fused)
    if "pooled-slots" in job.modes:
        lists["pooled-slots"] = search_pooled(index, queries, depth)
    return lists


def _write(cell: Cell, queries: list[Query], lists: dict[str, Hits], job: SweepJob) -> None:
    depth = searched_depth(job.top_k, exclude_self=job.exclude_self)
    # Runs of an older state are replaced one by one: from here on none of them is vouched for.
    (cell.folder / _STATE).unlink(missing_ok=True)
    for mode in job.modes:
        if mode == "pooled-slots":
            hits = lists[mode]
        else:
            hits = ranked(mode, lists.get("dense", []), lists.get("sparse", []), depth)
        kept = (
            (query.id, kept_hits(query.id, found, job.top_k, exclude_self=job.exclude_self))
            for query, found in zip(queries, hits, strict=True)
        )
        write_run(cell.folder / f"{mode}.trec", kept, mode)
    write_text(cell.folder / _STATE, json.dumps({"state": cell.state}) + "\n")
