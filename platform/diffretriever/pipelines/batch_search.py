"""Batch search: encode queries, search parts of the index, merge exactly, write TREC runs.

The output folder stores the results of each part until the runs are written, so that a killed job resumes. BM25 needs
the statistics of the whole index and is therefore not searched in parts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from diffretriever.collections import Query, Run, open_collection, read_queries, write_run
from diffretriever.core.files import json_digest, write_text
from diffretriever.core.ledger import Ledger
from diffretriever.core.progress import Progress, track
from diffretriever.evaluation.exclusion import settled_by_index
from diffretriever.index.filters import condition_of
from diffretriever.index.manifest import check_same
from diffretriever.index.parts import IndexPart, split_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.blocks import QUERIES_PER_BLOCK, Stage, pack, query_block, unpack
from diffretriever.pipelines.executor import Executor, executor_for, few_queries
from diffretriever.presets import system_name, with_weights
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.retriever import NeuralRetriever, is_neural
from diffretriever.schemas.search import BatchSearchJob, BatchSearchSummary
from diffretriever.search.batch import kept_hits, list_depth, merge, searched_depth, to_hits, to_table
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.searcher import check_modes
from diffretriever.vectors.fusion import encoded_lists_for, lists_for, ranked
from diffretriever.vectors.representations import Representations

_LOG = logging.getLogger(__name__)

_HITS_AT_ONCE = 5_000_000
"""Hits of a result list in a scan of the index: about 150 MB."""
_DECISIVE = {"modes", "filter", "top_k", "query_budget", "exclude_self", "search_budget"}
"""Settings that affect results, unlike those of the cluster."""


def search_batch(job: BatchSearchJob) -> BatchSearchSummary:
    """Search for the queries of a job and write a run for each mode. A killed job resumes.

    Raises:
        ValueError: The index is missing, lacks a mode, the queries are malformed, or the cluster is too small. Nothing
            has been written then.
    """
    started = time.monotonic()
    index = PassageIndex.open(job.index)
    if job.filter is not None:
        # An invalid filter fails before the work starts.
        condition_of(job.filter, index.manifest.metadata)
    check_modes(job.modes, index.manifest.retriever.offered_modes, index.uri)
    modes = tuple(dict.fromkeys(job.modes)) or index.manifest.retriever.reported_modes
    job = job.model_copy(update={"modes": modes})
    if job.queries is not None:
        queries = read_queries(job.queries)
    else:
        assert job.collection is not None, "the config has checked this"
        collection = open_collection(job.collection)
        queries = collection.queries(job.split)
        job, notices = settled_by_index(job, index, queries, collection.qrels(job.split))
        for notice in notices:
            _LOG.warning("warning: %s", notice)
    if not queries:
        raise ValueError("there are no queries to search for")
    job = job.settled(default=False)
    retriever = _retriever(job, index)
    with executor_for(job.encoding, small=few_queries(index, len(queries))) as executor:
        executor.load(retriever)
        check_same(index.manifest, executor.manifest(), index.uri)
        search = _BatchSearch(job, index, queries, executor)
        search.encode()
        for start, stop in search.rounds():
            search.search(start, stop)
    write_text(job.output / "search.yaml", job.to_yaml())
    runs = {mode: str(search.write_run(mode)) for mode in job.modes}
    search.ledger.clear()
    return BatchSearchSummary(
        queries=len(queries),
        passages=len(index),
        parts=search.searched,
        parts_found=search.resumed,
        seconds=time.monotonic() - started,
        runs=runs,
    )


def _retriever(job: BatchSearchJob, index: PassageIndex) -> NeuralRetriever:
    retriever = index.manifest.retriever
    if not is_neural(retriever):
        raise ValueError(f"{job.index} is a BM25 index, whose search needs no cluster: use `python jobs/evaluate.py`")
    if job.query_budget is not None and not retriever.has_query_budget:
        raise ValueError(f"the {retriever.method} method has no query budget")
    return with_weights(retriever, job.backbone, job.adapter)


class _BatchSearch:
    """Rounds of a batch search: each searches all parts of the index for some of the queries.

    Ledger entries: encoded queries (`queries/START`), results of a part (`START/PART/LIST`), merged results
    (`START/LIST`).

    Attributes:
        ledger: its folder is named after everything that affects the results.
        searched: parts searched, summed over rounds.
        resumed: parts that an earlier attempt had searched.
    """

    def __init__(self, job: BatchSearchJob, index: PassageIndex, queries: list[Query], executor: Executor) -> None:
        self._job, self._index, self._queries, self._executor = job, index, queries, executor
        self._condition = None if job.filter is None else condition_of(job.filter, index.manifest.metadata)
        self._parts = split_fragments(index, executor.parts)
        self.ledger = Ledger(job.output / f".parts-{_identity(job, index, queries)}")
        self.searched = self.resumed = 0

    def rounds(self) -> list[tuple[int, int]]:
        """Return the first and last query (exclusive) of each round."""
        size, count = max(1, _HITS_AT_ONCE // list_depth(self._job)), len(self._queries)
        return [(start, min(start + size, count)) for start in range(0, count, size)]

    def encode(self) -> None:
        """Encode the queries that are not in the ledger yet."""
        if not encoded_lists_for(self._job.modes):
            return
        blocks = {
            _block_name(start): self._queries[start : min(start + QUERIES_PER_BLOCK, stop)]
            for first, stop in self.rounds()
            for start in range(first, stop, QUERIES_PER_BLOCK)
        }
        budget = self._job.query_budget
        missing = {name: query_block(block, budget) for name, block in blocks.items() if not self.ledger.has(name)}
        total = sum(map(len, missing.values()))
        with Progress("encoding queries", total, unit="queries", quiet=True) as progress:
            for name, table in self._executor.encode_queries(missing):
                self.ledger.put_table(name, table)
                progress.update(len(table))

    def search(self, start: int, stop: int) -> None:
        if "bm25" in lists_for(self._job.modes) and not self.ledger.has(_list_name(start, "bm25")):
            hits = self._bm25.search([query.text for query in self._queries[start:stop]], list_depth(self._job))
            self.ledger.put_table(_list_name(start, "bm25"), to_table(hits))
        lists = encoded_lists_for(self._job.modes)
        if not lists:
            return
        if all(self.ledger.has(_list_name(start, name)) for name in lists):
            self.resumed += len(self._parts)
            return
        missing = {
            part: fragments
            for part, fragments in self._parts.items()
            if not all(self.ledger.has(_list_name(start, name, part)) for name in lists)
        }
        self.resumed += len(self._parts) - len(missing)
        if missing:
            self._search(start, stop, missing)
        for name in lists:
            tables = [self.ledger.get_table(_list_name(start, name, part)) for part in self._parts]
            self.ledger.put_table(_list_name(start, name), merge(tables, list_depth(self._job)))
        for part in self._parts:
            self.ledger.remove(f"{start}/{part}")

    @cached_property
    def _bm25(self) -> Bm25Search:
        bm25 = Bm25Search(self._index)
        return bm25 if self._condition is None else bm25.admitting(IndexPart.filtered(self._index, self._condition))

    def _search(self, start: int, stop: int, parts: dict[str, list[int]]) -> None:
        blocks = [self.ledger.get_table(_block_name(first)) for first in range(start, stop, QUERIES_PER_BLOCK)]
        encoded = Representations.from_arrow(pa.concat_tables(blocks))
        lists = len(parts) * len(encoded_lists_for(self._job.modes))
        stage = SearchParts(self._job, self._index.version, encoded, self._executor.device)
        fragments = {part: pa.table({"fragment": pa.array(ids, pa.int64())}) for part, ids in parts.items()}
        with Progress(f"queries {start + 1:,} to {stop:,}", lists, unit="lists", quiet=True) as progress:
            for path, table in self._executor.map(stage, fragments):
                part, _, name = path.rpartition("/")
                self.ledger.put_table(_list_name(start, name, part), table)
                progress.update()
        self.searched += len(parts)

    def write_run(self, mode: Mode) -> Path | StorePath:
        """Write the run of one mode and return its path."""
        path = self._job.output / f"{mode}.trec"
        system = system_name(self._index.manifest, self._job.query_budget)
        parts = track(self._runs(mode), f"writing {path.name}", "queries", len(self._queries), len)
        write_run(path, parts, f"{system}.{mode}")
        return path

    def _runs(self, mode: Mode) -> Iterator[Run]:
        """Yield the run of each round."""
        job = self._job
        depth = searched_depth(job.top_k, exclude_self=job.drops_self)
        for start, stop in self.rounds():
            ids = [query.id for query in self._queries[start:stop]]
            tables = {name: self.ledger.get_table(_list_name(start, name)) for name in lists_for([mode])}
            hits = ranked(mode, to_hits(tables, len(ids)), depth)
            yield Run(ids, kept_hits(ids, hits, job.top_k, exclude_self=job.drops_self))


def _identity(job: BatchSearchJob, index: PassageIndex, queries: list[Query]) -> str:
    """Return a name that differs wherever results could."""
    settings = job.model_dump(mode="json", include=_DECISIVE)
    texts = [[query.id, query.text] for query in queries]
    return json_digest([index.uri, index.version, index.manifest.fingerprint, settings, texts])


def _block_name(start: int) -> str:
    return f"queries/{start}.arrow"


def _list_name(start: int, name: str, part: str | None = None) -> str:
    return f"{start}/{name}.arrow" if part is None else f"{start}/{part}/{name}.arrow"


class SearchParts(Stage):
    """Searches parts of an index for all queries.

    A block contains the fragment numbers of a part. For each result list that the modes need, it becomes a table of
    `search.batch.to_table`, named `PART/dense` or `PART/sparse`.
    """

    workers = "searchers"

    def __init__(self, job: BatchSearchJob, version: int, queries: Representations, device: str) -> None:
        """Store the search options, index version, encoded queries and device."""
        self._job, self._version, self._queries, self._device = job, version, queries, device

    def setup(self) -> None:
        """Compute in one thread: Ray runs a task on each CPU."""
        import torch

        torch.set_num_threads(1)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Search the parts of the blocks in `rows`."""
        from diffretriever.search.batch import search_lists

        for name, table in unpack(rows):
            index = PassageIndex.open(self._job.index, self._version)
            part = IndexPart.of_fragments(index, table.column("fragment").to_pylist())
            for scorer, hits in search_lists(part, self._queries, self._job, self._device):
                yield pack(f"{name}/{scorer}", hits)
