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
from diffretriever.evaluation.conditions import settled_by_index
from diffretriever.index.manifest import check_same
from diffretriever.index.parts import IndexPart, split_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.blocks import QUERIES_PER_BLOCK, Stage, pack, query_block, unpack
from diffretriever.pipelines.executor import Executor, executor_for, few_queries
from diffretriever.presets import system_name, with_weights
from diffretriever.schemas.documents import chunks_averaged
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.places import StorePath
from diffretriever.schemas.retriever import NeuralRetriever, is_neural
from diffretriever.schemas.search import BatchSearchJob, BatchSearchSummary
from diffretriever.search.batch import kept_hits, merge, searched_depth, to_hits, to_table
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.documents import Round, documents_of, first_depth, search_condition, search_documents
from diffretriever.search.searcher import check_modes
from diffretriever.vectors.documents import Documents, rank_documents
from diffretriever.vectors.fusion import depth_for, encoded_lists_for, lists_for, ranked
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

_LOG = logging.getLogger(__name__)

_HITS_AT_ONCE = 5_000_000
"""Hits of a result list in a scan of the index: about 150 MB."""
_DECISIVE = {"modes", "filter", "top_k", "query_budget", "exclude_self", "search_budget", "documents"}
"""Settings that affect results, unlike those of the cluster."""


def search_batch(job: BatchSearchJob) -> BatchSearchSummary:
    """Search for the queries of a job and write a run for each mode. A killed job resumes.

    Raises:
        ValueError: The index is missing, lacks a mode, the queries are malformed, or the cluster is too small. Nothing
            has been written then.
    """
    started = time.monotonic()
    index = PassageIndex.open(job.index)
    # An invalid filter fails before the work starts.
    search_condition(job.filter, index.manifest.metadata, job.documents)
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
        search.search_all()
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

    Ledger entries: encoded queries (`queries/START`), results of a part (`ROUND/PART/LIST`), merged results
    (`ROUND/LIST`).

    Attributes:
        rounds: those with the results, in order of their queries.
        ledger: its folder is named after everything that affects the results.
        searched: parts searched, summed over rounds.
        resumed: parts that an earlier attempt had searched.
    """

    def __init__(self, job: BatchSearchJob, index: PassageIndex, queries: list[Query], executor: Executor) -> None:
        self._job, self._index, self._queries, self._executor = job, index, queries, executor
        self._k = searched_depth(job.top_k, exclude_self=job.drops_self)
        self._parts = split_fragments(index, executor.parts)
        self.ledger = Ledger(job.output / f".parts-{_identity(job, index, queries)}")
        self.rounds: list[Round] = []
        depth, count = first_depth(self._k, job.documents), len(queries)
        size = max(1, _HITS_AT_ONCE // depth_for(job.modes, depth))
        self._first_rounds = [Round(start, min(start + size, count), depth) for start in range(0, count, size)]
        self._block_starts = [
            start for each in self._first_rounds for start in range(each.start, each.stop, QUERIES_PER_BLOCK)
        ]
        self.searched = self.resumed = 0

    def encode(self) -> None:
        """Encode the queries that are not in the ledger yet."""
        if not encoded_lists_for(self._job.modes):
            return
        ends = [*self._block_starts[1:], len(self._queries)]
        blocks = {
            _block_name(start): self._queries[start:end] for start, end in zip(self._block_starts, ends, strict=True)
        }
        budget = self._job.query_budget
        missing = {name: query_block(block, budget) for name, block in blocks.items() if not self.ledger.has(name)}
        total = sum(map(len, missing.values()))
        with Progress("encoding queries", total, unit="queries", quiet=True) as progress:
            for name, table in self._executor.encode_queries(missing):
                self.ledger.put_table(name, table)
                progress.update(len(table))

    def search_all(self) -> None:
        """Search in rounds, deeper while the best documents are uncertain."""
        for first in self._first_rounds:
            if self._job.documents is None:
                self._search(first)
                self.rounds.append(first)
            else:
                found = search_documents(self._passages, first, self._documents, self._job.documents, self._k)
                self.rounds += [each for each, _ in found]

    def _search(self, each: Round) -> None:
        depth = depth_for(self._job.modes, each.depth)
        if "bm25" in lists_for(self._job.modes) and not self.ledger.has(_list_name(each, "bm25")):
            hits = self._bm25.search([query.text for query in self._queries[each.start : each.stop]], depth)
            self.ledger.put_table(_list_name(each, "bm25"), to_table(hits, with_rows=self._job.documents is not None))
        lists = encoded_lists_for(self._job.modes)
        if not lists:
            return
        if all(self.ledger.has(_list_name(each, name)) for name in lists):
            self.resumed += len(self._parts)
            return
        missing = {
            part: fragments
            for part, fragments in self._parts.items()
            if not all(self.ledger.has(_list_name(each, name, part)) for name in lists)
        }
        self.resumed += len(self._parts) - len(missing)
        if missing:
            self._search_parts(each, missing)
        for name in lists:
            tables = [self.ledger.get_table(_list_name(each, name, part)) for part in self._parts]
            self.ledger.put_table(_list_name(each, name), merge(tables, depth))
        for part in self._parts:
            self.ledger.remove(f"{_round_name(each)}/{part}")

    @cached_property
    def _admitted(self) -> IndexPart | None:
        condition = search_condition(self._job.filter, self._index.manifest.metadata, self._job.documents)
        return None if condition is None else IndexPart.filtered(self._index, condition)

    @cached_property
    def _bm25(self) -> Bm25Search:
        bm25 = Bm25Search(self._index)
        return bm25 if self._admitted is None else bm25.admitting(self._admitted)

    @cached_property
    def _documents(self) -> Documents:
        documents = documents_of(self._index.order)
        return documents if self._admitted is None else documents.among(self._admitted.order.by_row)

    def _search_parts(self, each: Round, parts: dict[str, list[int]]) -> None:
        start = max(start for start in self._block_starts if start <= each.start)
        names = [_block_name(block) for block in self._block_starts if start <= block < each.stop]
        rows = pa.concat_tables([self.ledger.get_table(name) for name in names])
        encoded = Representations.from_arrow(rows.slice(each.start - start, each.stop - each.start))
        lists = len(parts) * len(encoded_lists_for(self._job.modes))
        depth = depth_for(self._job.modes, each.depth)
        stage = SearchParts(self._job, self._index.version, encoded, self._executor.device, depth)
        fragments = {part: pa.table({"fragment": pa.array(ids, pa.int64())}) for part, ids in parts.items()}
        with Progress(f"queries {each.start + 1:,} to {each.stop:,}", lists, unit="lists", quiet=True) as progress:
            for path, table in self._executor.map(stage, fragments):
                part, _, name = path.rpartition("/")
                self.ledger.put_table(_list_name(each, name, part), table)
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
        for each in self.rounds:
            ids = [query.id for query in self._queries[each.start : each.stop]]
            hits = self._ranked(mode, each)
            if job.documents is not None:
                averaged = chunks_averaged(job.documents)
                documents = rank_documents(hits, self._documents, averaged=averaged, k=self._k, depth=each.depth)
                assert documents is not None, "the search has gone deep enough"
                hits = documents
            yield Run(ids, kept_hits(ids, hits, job.top_k, exclude_self=job.drops_self))

    def _passages(self, each: Round) -> dict[Mode, Hits]:
        self._search(each)
        return {mode: self._ranked(mode, each) for mode in self._job.modes}

    def _ranked(self, mode: Mode, each: Round) -> Hits:
        tables = {name: self.ledger.get_table(_list_name(each, name)) for name in lists_for([mode])}
        hits = ranked(mode, to_hits(tables, each.stop - each.start), each.depth)
        return hits if self._job.documents is None else self._index.order.renumbered(hits)


def _identity(job: BatchSearchJob, index: PassageIndex, queries: list[Query]) -> str:
    """Return a name that differs wherever results could."""
    settings = job.model_dump(mode="json", include=_DECISIVE)
    texts = [[query.id, query.text] for query in queries]
    return json_digest([index.uri, index.version, index.manifest.fingerprint, settings, texts])


def _block_name(start: int) -> str:
    return f"queries/{start}.arrow"


def _round_name(each: Round) -> str:
    return f"{each.start}-{each.stop}-{each.depth}"


def _list_name(each: Round, name: str, part: str | None = None) -> str:
    return f"{_round_name(each)}/{name}.arrow" if part is None else f"{_round_name(each)}/{part}/{name}.arrow"


class SearchParts(Stage):
    """Searches parts of an index for all queries.

    A block contains the fragment numbers of a part. For each result list that the modes need, it becomes a table of
    `search.batch.to_table`, named `PART/dense` or `PART/sparse`.
    """

    workers = "searchers"

    def __init__(self, job: BatchSearchJob, version: int, queries: Representations, device: str, depth: int) -> None:
        """Store the search options, index version, encoded queries, device, and depth of the result lists."""
        self._job, self._version, self._queries, self._device, self._depth = job, version, queries, device, depth

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
            for scorer, hits in search_lists(part, self._queries, self._job, self._device, self._depth):
                yield pack(f"{name}/{scorer}", hits)
