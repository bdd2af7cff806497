"""Encode and search a budget sweep: an index for each K_p, queries for each K_q, a run for every pair.

One pass over an index serves all K_q and all splits. The sweep's folder has `sweep.yaml`, `retriever.yaml`, the
manifest, `indexes/pK` and, for each split, `encoded/qK-STATE.arrow` and `runs/BUDGET`. A cell is a split searched with
one budget. Its `cell.json` is written last and records the runs' inputs; a cell with the same inputs is not repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pyarrow as pa
import yaml

from diffretriever.backbones.device import resolve_device
from diffretriever.budgets.features import QueryText
from diffretriever.collections import Collection, Query, Run, open_collection, write_run
from diffretriever.core.files import is_file, json_digest, remove, write_text
from diffretriever.core.ledger import Ledger, refuse_another
from diffretriever.core.progress import track
from diffretriever.encoders import load_preparer
from diffretriever.evaluation.exclusion import settled_by_passages
from diffretriever.evaluation.measures import deepest_rank, parse_measures
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.blocks import MAX_ROWS, QUERIES_PER_BLOCK, query_block
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.encoder_start import as_begun
from diffretriever.pipelines.executor import Executor, executor_for, few_passages
from diffretriever.pipelines.language import in_language_of
from diffretriever.presets import RETRIEVERS, load_retriever, system_name
from diffretriever.schemas.base import suggest
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import NO_METADATA, EncodeJob
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.mode import ListName
from diffretriever.schemas.retriever import MaskedRetriever, has_slots
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.settings import RayConfig
from diffretriever.schemas.sweep import (
    RETRIEVER_FILE,
    SweepJob,
    SweepManifest,
    SweepMode,
    SweepSummary,
    encoder_fingerprint,
)
from diffretriever.search.batch import kept_hits, searched_depth
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.averaged import AveragedSlots
from diffretriever.search.sparse import open_sparse
from diffretriever.studies.budgets.sweep_files import (
    ENCODED_FOLDER,
    JOB_FILE,
    MANIFEST_FILE,
    drawn_queries,
    encoded_files,
    read_manifest,
    read_settings,
    write_queries,
)
from diffretriever.vectors.fusion import FUSION_DEPTH, depth_for, lists_for, ranked
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

NO_BUDGET = Budget(1, 1)
"""Placeholder in the retriever that all cells of a sweep share."""

_QUERIES_AT_ONCE = 5000
"""Encoded queries that share a pass over an index; their results take about 0.2 MB each until they are written."""
_LEAST_DEPTH = 100
"""Least depth of the runs, so that other measures seldom need new searches."""
_SHARED_SETTINGS = ("exclude_self", "max_queries")
_FINISHED = "finished.json"
_STATE = "cell.json"


def sweep_budgets(job: SweepJob, command: str, log: Callable[[str], None]) -> SweepSummary:
    """Encode and search the missing parts of the sweep in the job's folder; `log` takes a line for each step.

    Raises:
        ValueError: a retriever without slots, an unknown split, bad input or a folder with another sweep.
    """
    started = time.monotonic()
    collection = open_collection(job.collection)
    retriever = in_language_of(collection, _retriever(job), job.language)
    settled = {"splits": _splits(job, collection), "modes": _modes(job, retriever), "language": retriever.language}
    job = job.model_copy(update=settled)
    job = _settled(job, collection, log)
    queries = {split: drawn_queries(job, split, collection.queries(split)) for split in job.splits}
    with WriterLock(str(job.output)):
        small = few_passages(collection) and sum(map(len, queries.values())) <= MAX_ROWS
        with executor_for(job.encoding, small=small) as executor:
            executor.load(retriever)
            encoder = executor.manifest()
            _begin(job, collection.name, encoder, command)
            _write_queries(job.output, queries, encoder)
            store = QueryStore(job.output, queries, encoder_fingerprint(encoder))
            # Passages first: a bad one stops the job before anything is encoded.
            indexes = _encode_indexes(job, collection, nested=retriever.nested_slots, log=log)
            log(f"queries of {', '.join(job.splits)}")
            store.encode(job.query_budgets, executor, log)
        return _search_missing(job, indexes, store, started, log)


def _retriever(job: SweepJob) -> MaskedRetriever:
    config = load_retriever(job.retriever, job.backbone, None, job.adapter, job.protocol)
    if not has_slots(config):
        raise ValueError(f"{job.retriever}: the {config.method} method has no slots, so there are no budgets to sweep")
    begun = job.output / RETRIEVER_FILE
    if is_file(begun):
        before = RETRIEVERS.load(str(begun))
        if not has_slots(before):
            raise ValueError(f"{begun}: not the retriever of a sweep: give another --output, or remove the folder")
        place = as_begun(config.backbone, before.backbone)
        config = config.model_copy(update={"backbone": place})
    return config.model_copy(update={"budget": NO_BUDGET})


def _settled(job: SweepJob, collection: Collection, log: Callable[[str], None]) -> SweepJob:
    queries = {query.id: query for split in job.splits for query in collection.queries(split)}
    qrels = {query: judged for split in job.splits for query, judged in collection.qrels(split).items()}
    job, notes = settled_by_passages(job, collection.records(), [*queries.values()], qrels)
    for note in notes:
        log(note)
    return job


def _splits(job: SweepJob, collection: Collection) -> tuple[str, ...]:
    offered = collection.splits()
    for split in job.splits:
        if split not in offered:
            raise ValueError(f"{collection.name} has no split '{split}'.{suggest(split, offered)}")
    chosen = tuple(dict.fromkeys(job.splits)) or tuple(offered)
    if not chosen:
        raise ValueError(f"{collection.name} has no queries to sweep budgets with")
    return chosen


def _modes(job: SweepJob, retriever: MaskedRetriever) -> tuple[SweepMode, ...]:
    return tuple(dict.fromkeys(job.modes)) or tuple(mode for mode in get_args(SweepMode) if mode in retriever.modes)


def _begin(job: SweepJob, collection: str, encoder: IndexManifest, command: str) -> None:
    manifest = SweepManifest(
        collection=collection,
        retriever=encoder.title.removesuffix(f" {NO_BUDGET}"),
        fingerprint=encoder_fingerprint(encoder),
        query_budgets=job.query_budgets,
        passage_budgets=job.passage_budgets,
        modes=job.modes,
        measures=job.measures,
        splits=job.splits,
        command=command,
    )
    _refuse_another(job, manifest)
    write_text(job.output / RETRIEVER_FILE, yaml.safe_dump(encoder.retriever.model_dump(mode="json"), sort_keys=False))
    write_text(job.output / JOB_FILE, job.to_yaml())
    write_text(job.output / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")


def _refuse_another(job: SweepJob, manifest: SweepManifest) -> None:
    if not is_file(job.output / MANIFEST_FILE):
        return
    before = read_manifest(job.output)
    settings = read_settings(job.output)
    theirs = {"collection": before.collection} | {name: settings[name] for name in _SHARED_SETTINGS}
    ours = {
        "collection": manifest.collection,
        "exclude_self": job.drops_self,
        "max_queries": job.max_queries,
    }
    if before.fingerprint != manifest.fingerprint:
        # Only then do the names count: the same weights may lie elsewhere by now.
        theirs["retriever"] = f"{before.retriever} ({before.fingerprint})"
        ours["retriever"] = f"{manifest.retriever} ({manifest.fingerprint})"
    refuse_another(job.output, "another sweep", theirs, ours)


def _write_queries(folder: Path | StorePath, queries: dict[str, list[Query]], encoder: IndexManifest) -> None:
    assert has_slots(encoder.retriever), "only such retrievers are swept"
    preparer = load_preparer(encoder.retriever)
    for split, asked in queries.items():
        rows = preparer.query_tokens([query.text for query in asked])
        texts = {query.id: QueryText(query.text, row) for query, row in zip(asked, rows, strict=True)}
        write_queries(folder, split, texts)


def _encode_indexes(
    job: SweepJob, collection: Collection, *, nested: bool, log: Callable[[str], None]
) -> dict[int, PassageIndex]:
    places = {budget: job.output / "indexes" / f"p{budget}" for budget in job.passage_budgets}
    # The content of `finished.json`.
    state = {"source": collection.source_state()}
    missing = {budget: place for budget, place in places.items() if Ledger(place).get_json(_FINISHED) != state}
    for together in [missing] if nested and missing else [{budget: missing[budget]} for budget in missing]:
        log(f"index of K_p = {', '.join(str(budget) for budget in together)}")
        largest = max(together)
        encoding = EncodeJob(
            **job.model_dump(include=set(RayConfig.model_fields)),
            collection=job.collection,
            metadata=NO_METADATA,
            retriever=str(job.output / RETRIEVER_FILE),
            index=str(together[largest]),
            # No stored vector depends on K_q.
            budget=Budget(1, largest),
            on_bad_input=job.on_bad_input,
            language=job.language,
        )
        encode_collection(encoding, {budget: str(place) for budget, place in together.items() if budget < largest})
        for place in together.values():
            Ledger(place).put_json(_FINISHED, state)
    return {budget: PassageIndex.open(str(place)) for budget, place in places.items()}


class QueryStore:
    """Encoded queries of every split and K_q, in files named by a digest of their inputs."""

    def __init__(self, folder: Path | StorePath, queries: dict[str, list[Query]], fingerprint: str) -> None:
        """`queries` by split; `fingerprint` is the encoder's, whatever its budget."""
        self.queries = queries
        self._ledger = Ledger(folder)
        self._folder = folder
        self.states = {
            split: json_digest([fingerprint, [[query.id, query.text] for query in asked]])
            for split, asked in queries.items()
        }

    def read(self, split: str, budget: int) -> Representations:
        """Return the queries of a split, encoded with K_q = `budget`."""
        return Representations.from_arrow(self._ledger.get_table(self._name(split, budget)))

    def encode(self, budgets: Sequence[int], executor: Executor, log: Callable[[str], None]) -> None:
        """Encode the queries of all splits with every K_q of `budgets` that is missing."""
        size = QUERIES_PER_BLOCK
        missing = [(s, k) for k in budgets for s in self.queries if not self._ledger.has(self._name(s, k))]
        blocks = {
            json.dumps([split, budget, start]): query_block(self.queries[split][start : start + size], budget)
            for split, budget in missing
            for start in range(0, len(self.queries[split]), size)
        }
        done: dict[tuple[str, int], dict[int, pa.Table]] = {cell: {} for cell in missing}
        for name, table in executor.encode_queries(blocks):
            split, budget, start = json.loads(name)
            parts = done[split, budget]
            parts[start] = table
            if len(parts) * size >= len(self.queries[split]):
                for stale in encoded_files(self._folder / split / ENCODED_FOLDER, budget):
                    remove(stale)
                joined = pa.concat_tables([parts.pop(start) for start in sorted(parts)])
                self._ledger.put_table(self._name(split, budget), joined)
                log(f"  {len(self.queries[split]):,} queries of {split} encoded with K_q = {budget}")

    def _name(self, split: str, budget: int) -> str:
        return f"{split}/{ENCODED_FOLDER}/q{budget}-{self.states[split]}.arrow"


def _search_missing(
    job: SweepJob, indexes: dict[int, PassageIndex], store: QueryStore, started: float, log: Callable[[str], None]
) -> SweepSummary:
    searched = found = passes = 0
    for budget, index in indexes.items():
        cells = _cells_of(index, budget, store, job)
        missing = [cell for cell in cells if not cell.is_done(job.modes)]
        log(f"K_p = {budget}: {len(missing):,} of {len(cells):,} cells to search")
        for together in _rounds(missing, store):
            count = sum(len(store.queries[cell.split]) for cell in together)
            log(f"  {len(together)} cells in one pass: {count:,} encoded queries over {len(index):,} passages")
            _search_round(index, together, store, job)
            passes += 1
        searched, found = searched + len(missing), found + len(cells) - len(missing)
    return SweepSummary(
        passages=len(indexes[job.passage_budgets[0]]),
        searched=searched,
        found=found,
        passes=passes,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True)
class Cell:
    """A split searched with one budget."""

    split: str
    budget: Budget
    folder: Path | StorePath
    """Folder of its runs."""
    state: str
    """Digest of the runs' inputs."""

    def is_done(self, modes: Sequence[SweepMode]) -> bool:
        """Return whether the runs of these modes exist and have the same inputs."""
        ledger = Ledger(self.folder)
        same = ledger.get_json(_STATE) == {"state": self.state}
        return same and all(ledger.has(f"{mode}.trec") for mode in modes)


def _cells_of(index: PassageIndex, passage_budget: int, store: QueryStore, job: SweepJob) -> list[Cell]:
    manifest = index.manifest
    made_of = [manifest.fingerprint, manifest.created, index.version, _depth(job), job.drops_self]
    cells = []
    for number in job.query_budgets:
        budget = Budget(number, passage_budget)
        for split in store.queries:
            state = json_digest([*made_of, number, store.states[split]])
            cells.append(Cell(split, budget, job.output / split / "runs" / str(budget), state))
    return cells


def _rounds(cells: list[Cell], store: QueryStore) -> Iterator[list[Cell]]:
    group: list[Cell] = []
    count = 0
    for cell in cells:
        size = len(store.queries[cell.split])
        if group and count + size > _QUERIES_AT_ONCE:
            yield group
            group, count = [], 0
        group.append(cell)
        count += size
    if group:
        yield group


def _search_round(index: PassageIndex, cells: list[Cell], store: QueryStore, job: SweepJob) -> None:
    queries = Representations.concatenate([store.read(cell.split, cell.budget.query) for cell in cells])
    hits = _search_modes(index, queries, job)
    start = 0
    for cell in track(cells, "writing runs", "cells"):
        names = [query.id for query in store.queries[cell.split]]
        rows = slice(start, start + len(names))
        start += len(names)
        system = system_name(index.manifest, cell.budget.query)
        # Runs of an older state are replaced one by one: without the state's file, none of them counts.
        ledger = Ledger(cell.folder)
        ledger.remove(_STATE)
        for mode in job.modes:
            kept = kept_hits(names, hits[mode][rows], _depth(job), exclude_self=job.drops_self)
            write_run(cell.folder / f"{mode}.trec", [Run(names, kept)], f"{system}.{mode}")
        ledger.put_json(_STATE, {"state": cell.state})


def _depth(job: SweepJob) -> int:
    return max(_LEAST_DEPTH, deepest_rank(parse_measures(job.measures)) or FUSION_DEPTH)


def _search_modes(index: PassageIndex, queries: Representations, job: SweepJob) -> dict[SweepMode, Hits]:
    depth = searched_depth(_depth(job), exclude_self=job.drops_self)
    options = SearchOptions(index=index.uri)
    device = resolve_device("auto")
    modes = [mode for mode in job.modes if mode != "pooled-slots"]
    lists: dict[ListName, Hits] = {}
    for name in lists_for(modes):
        search = open_dense(index, options, device) if name == "dense" else open_sparse(index, options)
        lists[name] = search.search(queries, depth_for(modes, depth))
    hits: dict[SweepMode, Hits] = {mode: ranked(mode, lists, depth) for mode in modes}
    if "pooled-slots" in job.modes:
        hits["pooled-slots"] = AveragedSlots(index, options, device).search(queries, depth)
    return hits
