"""Collection to index: read, prepare and encode on Ray Data, commit from the driver, exactly once.

The way of a passage is the order of this file: the job chooses what to encode, while machines come and the encoder is
loaded for the first time; one task reads it in blocks; tasks tokenise each block; encoder actors encode and write it as
fragments that nobody sees yet, and return a receipt (these two are in `blocks`); the driver commits what receipts name,
every two seconds. Committed fragments are joined to larger ones on the way. Few passages go the same way in one
process, without Ray. At the end the index gets what makes its searches fast.

Encoding begins after the scan that chooses, for one bad record may end the job; and a scan takes so little beside
encoding that no more is to be gained: docs/decisions.md has the figures.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset, TaskPoolStrategy

from diffretriever.collections import Collection, ScanResult, open_collection, scan, set_aside
from diffretriever.collections.chunks import ChunkedCollection
from diffretriever.collections.keys import KeySet, PassageSelection
from diffretriever.collections.metadata import WithMetadata
from diffretriever.collections.quarantine import own_file, refuse_other_files
from diffretriever.collections.scanning import ScannedPart
from diffretriever.files import is_local, write_text
from diffretriever.index.collection_places import note_place, refuse_other_places
from diffretriever.index.damage import named
from diffretriever.index.manifest import bm25_manifest, check_same
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock
from diffretriever.pipelines.accelerate import accelerate_index
from diffretriever.pipelines.blocks import (
    MAX_ROWS,
    DeviceUse,
    EncodeBlocks,
    EncoderStart,
    StoreBlocks,
    as_begun,
    passage_blocks,
    prepare_blocks,
    prepared_blocks,
    rows_per_block,
)
from diffretriever.pipelines.chunking import chunked
from diffretriever.pipelines.cluster import PREPARE_CPUS, EncoderPool, MachinesAhead, ray_session, size_pool
from diffretriever.pipelines.compact import CompactionBeside, compact_index
from diffretriever.pipelines.few import EncoderHere, is_few
from diffretriever.pipelines.streams import (
    AS_ARROW,
    actor_options,
    blocks_at_once,
    describing_encoder,
    read_blocks,
    scan_parts,
    tables_of,
)
from diffretriever.presets import load_retriever
from diffretriever.progress import Progress
from diffretriever.schemas.base import suggest
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import EncodeJob, EncodeSummary
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.retriever import NeuralRetriever, RetrieverConfig, has_slots, is_neural
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder

_LOG = logging.getLogger(__name__)

_COMMIT_EVERY_SECONDS = 2.0
# A commit rewrites the list of fragments: on a table with many, commit less often rather than spend time on it.
_COMMIT_SHARE = 0.02
_ENCODERS_PER_PREPARER = 4
_DELETED_AT_ONCE = 10_000
_ROWS_AT_ONCE = 65_536
_NOT_FINITE = "not finite"


def encode_collection(
    job: EncodeJob,
    smaller: Mapping[int, str] | None = None,
    *,
    collection: Collection | None = None,
    retriever: RetrieverConfig | None = None,
    here: EncoderHere | None = None,
) -> EncodeSummary:
    """Run an encode job in the Ray session at hand, or in one of its own; of few passages, in this process.

    A job that is killed leaves a valid index with what it had committed; the same job run again adds the rest.

    Args:
        job: of the index.
        smaller: K_p → uri of further indexes, each with a smaller budget, to write from the same forward passes. Only
            for nested slots.
        collection: to encode in place of the one that the job names.
        retriever: to encode by in place of the one that the job describes.
        here: encodes in this process, however many passages there are.

    Raises:
        ValueError: bad input, a retriever other than the index's, or a request the cluster cannot meet; nothing has
            been encoded then. Or a passage is encoded as NaN or infinity: what was committed stays.
    """
    started = time.monotonic()
    smaller = smaller or {}
    collection = collection or open_collection(job.collection, job.named_fields)
    quarantine = _quarantine_place(job, collection)
    if quarantine is not None:
        refuse_other_files(quarantine, collection.inputs())
    retriever = retriever or load_retriever(job.retriever, job.backbone, job.budget, job.adapter).on(collection.name)
    collection = chunked(collection, job.chunk, retriever)
    here = here or _if_few(job, collection)
    with ray_session(job) if here is None else nullcontext(), ExitStack() as held:
        uris = (job.index, *smaller.values())
        for uri in uris:
            held.enter_context(WriterLock(uri))
            if job.sync:
                refuse_other_places(uri, collection)
        pool = here or size_pool(job, retriever)
        existing = [PassageIndex.open(uri) if PassageIndex.exists(uri) else None for uri in uris]
        describe = _describing(retriever, existing[0], pool)
        selection = PassageSelection(job, [KeySet.none() if index is None else index.keys() for index in existing])
        with _machines_ahead(job, pool, selection) as choose:
            collection = _with_metadata(job, collection, existing)
            scanned = _scanned(job, collection, quarantine, choose, here=here is not None)
            collection = replace(collection, columns=scanned.columns)
            selection.refuse_conflicts(scanned.good(collection))
            encoder = describe().model_copy(update={"metadata": scanned.columns})
        manifests = [encoder, *(_with_budget(encoder, budget) for budget in smaller)]
        indexes = [_opened(*each) for each in zip(uris, existing, manifests, strict=True)]
        _note(job, indexes, collection)
        run = _Run(0.0, [], None, None)
        if scanned.n_kept:
            run = _run(job, encoder, indexes, collection, scanned, selection, pool)
        left_out = run.left_out
        if left_out:
            assert quarantine is not None, "such passages are refused otherwise"
            set_aside(collection, left_out, f"{_NOT_FINITE}: the retriever encodes it so", quarantine)
        deleted = _delete_if_gone(job, indexes, selection, collection)
        # Also where nothing was encoded: an attempt before this one may have been killed before it came here.
        if job.compact:
            for index in indexes:
                compact_index(index, job, job.keep_versions)
        if job.accelerate:
            for index in indexes:
                accelerate_index(index)
    n_bad = scanned.n_bad + len(left_out)
    return EncodeSummary(
        index=job.index,
        fingerprint=indexes[0].manifest.fingerprint,
        encoded=scanned.n_kept - len(left_out),
        already_there=selection.already_there,
        skipped=selection.skipped,
        replaced=selection.replaced - selection.count_held(left_out),
        deleted=deleted,
        bad=n_bad,
        bad_reasons=scanned.reasons | ({_NOT_FINITE: len(left_out)} if left_out else {}),
        quarantine=str(quarantine) if n_bad else None,
        rows=len(indexes[0]),
        chunk=collection.source.tokens if isinstance(collection.source, ChunkedCollection) else None,
        seconds=time.monotonic() - started,
        steady_rate=run.rate,
        device_share=run.device_share,
        peak_memory=run.peak_memory,
    )


def _note(job: EncodeJob, indexes: Sequence[PassageIndex], collection: Collection) -> None:
    """Leave in each index's folder what the job is, and from where its passages come."""
    for index in indexes:
        write_text(f"{index.uri.rstrip('/')}/encode.yaml", job.to_yaml())
        note_place(index.uri, collection)


def _with_metadata(job: EncodeJob, source: Collection, existing: Sequence[PassageIndex | None]) -> WithMetadata:
    """Return the collection with what the indexes keep of its further fields; in a new one, what the job says.

    Raises:
        ValueError: the job names a field that an index has no column for, or the indexes have different columns.
    """
    wanted = job.metadata_wanted
    columns = [index.manifest.metadata for index in existing if index is not None]
    if not columns:
        return WithMetadata(source, wanted)
    if any(each != columns[0] for each in columns):
        raise ValueError(f"the indexes keep different metadata: {' and '.join(map(str, columns))}: make them anew")
    for name in wanted or ():
        if name not in columns[0]:
            known = suggest(name, columns[0]) if columns[0] else " It keeps no metadata."
            raise ValueError(f"--metadata: {job.index} has no column '{name}': make it anew to have one.{known}")
    return WithMetadata(source, wanted, columns[0])


def _if_few(job: EncodeJob, collection: Collection) -> EncoderHere | None:
    return EncoderHere(job) if is_few(job, collection, job.rows_per_block) else None


def _delete_if_gone(
    job: EncodeJob, indexes: Sequence[PassageIndex], selection: PassageSelection, collection: Collection
) -> int:
    """Delete what the collection no longer has, where the job says so; return how many passages that were."""
    deleted = 0
    for index in indexes if job.sync else ():
        gone = selection.gone(index.batches(["id", "collection"], _ROWS_AT_ONCE), collection.name)
        deleted = sum(index.delete(gone[at : at + _DELETED_AT_ONCE]) for at in range(0, len(gone), _DELETED_AT_ONCE))
    return deleted


def _scanned(
    job: EncodeJob,
    collection: Collection,
    quarantine: Path | StorePath | None,
    choose: Callable[[np.ndarray], np.ndarray],
    *,
    here: bool,
) -> ScanResult:
    parts = None if here else scan_parts
    scanned = scan(collection, job.on_bad_input, quarantine, choose=choose, scan_parts=parts)
    if scanned.left_out:
        _LOG.warning(
            "%s: values such as lists and objects are not kept as metadata: those of %s",
            collection.name,
            ", ".join(scanned.left_out),
        )
    if scanned.n_records == 0:
        raise ValueError(f"collection '{collection.name}' is empty: is {collection.place()} whole?")
    return scanned


def _quarantine_place(job: EncodeJob, collection: Collection) -> Path | StorePath | None:
    if job.on_bad_input == "error":
        return None
    beside = as_place(job.index) / ("quarantine.jsonl" if is_local(job.index) else "quarantine")
    return own_file(job.quarantine or beside, collection)


def _describing(
    retriever: RetrieverConfig, existing: PassageIndex | None, pool: EncoderPool | EncoderHere
) -> Callable[[], IndexManifest]:
    """Return what returns the encoder's manifest, and load it meanwhile where that is done in a worker.

    `existing` names the commit of the hub that its encoder was loaded from.
    """
    if not is_neural(retriever):
        return partial(bm25_manifest, retriever)
    begun = _as_begun(retriever, existing)
    if isinstance(pool, EncoderHere):
        return partial(pool.describe, begun)
    return describing_encoder(begun, pool)


@contextmanager
def _machines_ahead(
    job: EncodeJob, pool: EncoderPool | EncoderHere, selection: PassageSelection
) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Give what chooses passages by their keys, and has machines come for the blocks that they will be."""
    if isinstance(pool, EncoderHere):
        yield selection
        return
    with MachinesAhead(pool) as machines:
        wanted = 0

        def choose(keys_N: np.ndarray) -> np.ndarray:
            nonlocal wanted
            wanted_N = selection(keys_N)
            wanted += int(wanted_N.sum())
            machines.ask(math.ceil(wanted / (job.rows_per_block or MAX_ROWS)))
            return wanted_N

        yield choose


def _opened(uri: str, existing: PassageIndex | None, manifest: IndexManifest) -> PassageIndex:
    if existing is None:
        return PassageIndex.create(uri, manifest)
    check_same(existing.manifest, manifest, uri)
    return existing


def _as_begun(retriever: NeuralRetriever, existing: PassageIndex | None) -> NeuralRetriever:
    if existing is None or not is_neural(existing.manifest.retriever):
        return retriever
    place = as_begun(retriever.backbone, existing.manifest.retriever.backbone)
    return retriever.model_copy(update={"backbone": place})


def _with_budget(manifest: IndexManifest, passage_budget: int) -> IndexManifest:
    retriever = manifest.retriever
    assert has_slots(retriever), "only such retrievers have smaller budgets"
    assert retriever.nested_slots, "other slots depend on the number of slots"
    assert passage_budget < retriever.budget.passage, "the largest budget is the job's own"
    budget = Budget(retriever.budget.query, passage_budget)
    return manifest.model_copy(update={"retriever": retriever.model_copy(update={"budget": budget})})


class _Run(NamedTuple):
    """What is to be said of blocks that were encoded and committed."""

    rate: float
    """Passages per second once running."""
    left_out: list[str]
    """Ids of passages that are not finite."""
    device_share: float | None
    """See `EncodeSummary`."""
    peak_memory: int | None
    """See `EncodeSummary`."""


def _run(
    job: EncodeJob,
    encoder: IndexManifest,
    indexes: list[PassageIndex],
    collection: WithMetadata,
    scanned: ScanResult,
    selection: PassageSelection,
    pool: EncoderPool | EncoderHere,
) -> _Run:
    """Encode the kept passages by `encoder` and commit them as they come."""
    rows = job.rows_per_block or rows_per_block(encoder.retriever, encoder.hidden_size)
    sources = [partial(_read_part, collection, part, rows) for part in scanned.parts if part.n_kept]
    joining = []
    if isinstance(pool, EncoderHere):
        receipts = _receipts_here(sources, pool.encoder, indexes, job.threads_per_encoder)
    else:
        # An encoder more than there are blocks would load its weights for nothing.
        pool = replace(pool, encoders=min(pool.encoders, math.ceil(scanned.n_kept / rows)))
        blocks = read_blocks(sources, anywhere=not is_local(collection.place()))
        receipts = _receipts(blocks, encoder, indexes, pool, job)
        joining = [CompactionBeside(index, pool.encoders) for index in indexes] if job.compact else []
    if job.on_bad_input == "error":
        receipts = _until_not_finite(receipts)
    finished: list[tuple[float, int]] = []
    left_out: list[str] = []
    use = DeviceUse()
    with Progress(f"{collection.name} → {job.index}", scanned.n_kept) as progress:
        for receipt in committed(receipts, indexes, selection.present, joining):
            count = len(receipt["ids"]) + len(receipt["not_finite"])
            finished.append((time.monotonic(), count))
            left_out += receipt["not_finite"]
            use.add(receipt)
            progress.update(count, receipt["tokens"], receipt["padded_tokens"])
    if left_out and job.on_bad_input == "error":
        raise ValueError(
            f"collection '{collection.name}': {named(left_out)} would be stored with NaN or infinity; what was "
            f"committed to {job.index} stays. Look for damaged weights, or leave such passages out and have them "
            "listed with --on-bad-input quarantine; the same command then goes on"
        )
    done = sum(count for _, count in finished)
    if done != scanned.n_kept:
        raise RuntimeError(f"{scanned.n_kept} passages went in and {done} came out: run the same command again")
    for each in joining:
        each.finish()
    return _Run(_steady_rate(finished), left_out, use.share, use.peak_memory)


def _read_part(collection: WithMetadata, part: ScannedPart, rows: int) -> Iterator[pa.Table]:
    return passage_blocks(part.kept(collection), collection.name, rows, collection.columns)


def _receipts(
    blocks: Dataset, encoder: IndexManifest, indexes: Sequence[PassageIndex], pool: EncoderPool, config: RayConfig
) -> Iterator[dict[str, Any]]:
    """Encode and write the blocks; yield a row of `blocks.RECEIPT_SCHEMA` for each, as it is done, in no order.

    `encoder` is that of the first index; any others are of smaller budgets of its nested slots.
    """
    yield from _rows_of(tables_of(_written(blocks, encoder, indexes, pool, config)))


def _receipts_here(
    sources: Sequence[Callable[[], Iterator[pa.Table]]],
    encoder: Encoder | None,
    indexes: Sequence[PassageIndex],
    threads: int,
) -> Iterator[dict[str, Any]]:
    """Do in this process what `_receipts` has done by workers."""
    blocks = chain.from_iterable(source() for source in sources)
    if encoder is None:
        store = StoreBlocks(indexes[0].uri)
        yield from _rows_of(chain.from_iterable(map(store, blocks)))
        return
    from diffretriever.backbones.device import torch_threads

    encode = EncodeBlocks(encoder, _budgets(indexes))
    prepared = chain.from_iterable(prepared_blocks(rows, encoder.preparer) for rows in blocks)
    with torch_threads(threads):
        yield from _rows_of(chain.from_iterable(map(encode, prepared)))


def _rows_of(tables: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    for table in tables:
        yield from table.to_pylist()


def _budgets(indexes: Sequence[PassageIndex]) -> dict[str, int]:
    return {index.uri: index.manifest.retriever.max_vectors("passage") for index in indexes}


def _until_not_finite(receipts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """End after the first block with a passage that was left out: what is done is committed, the rest not begun."""
    for receipt in receipts:
        yield receipt
        if receipt["not_finite"]:
            return


def _steady_rate(finished: list[tuple[float, int]]) -> float:
    """Return passages per second from the end of the first block on, which also waited for the encoders to load."""
    if len(finished) < 2:
        return 0.0
    return sum(count for _, count in finished[1:]) / max(finished[-1][0] - finished[0][0], 1e-9)


def _written(
    blocks: Dataset, encoder: IndexManifest, indexes: Sequence[PassageIndex], pool: EncoderPool, config: RayConfig
) -> Dataset:
    """Return the graph from blocks of texts to receipts."""
    retriever = encoder.retriever
    if not is_neural(retriever):
        place = {"uri": indexes[0].uri}
        one = ActorPoolStrategy(size=1)
        return blocks.map_batches(
            StoreBlocks, fn_constructor_kwargs=place, num_cpus=PREPARE_CPUS, compute=one, **AS_ARROW
        )
    text = retriever.model_dump_json()
    prepared = blocks.map_batches(
        prepare_blocks,
        fn_kwargs={"retriever_json": text},
        num_cpus=PREPARE_CPUS,
        # Every one is a process that loads a tokenizer; one keeps several encoders busy.
        compute=TaskPoolStrategy(size=math.ceil(pool.encoders / _ENCODERS_PER_PREPARER)),
        **AS_ARROW,
    )
    constructor = {"start": EncoderStart.of(encoder, pool, config), "budgets": _budgets(indexes)}
    options = actor_options(pool, at_once=blocks_at_once(pool))
    return prepared.map_batches(EncodeBlocks, fn_constructor_kwargs=constructor, **options)


def committed(
    receipts: Iterable[dict[str, Any]],
    indexes: Sequence[PassageIndex],
    present: Sequence[KeySet],
    joining: Sequence[CompactionBeside],
) -> Iterator[dict[str, Any]]:
    """Commit blocks as they come, and yield their receipts; all of them are committed when the last one is yielded.

    Args:
        receipts: rows of `blocks.RECEIPT_SCHEMA`.
        indexes: where their blocks were written, in the order of each receipt's own.
        present: what each index held before. A new row replaces the old one in the same commit.
        joining: takes a step after each commit.
    """
    clock = _CommitClock()
    pending = [_Pending(index, held) for index, held in zip(indexes, present, strict=True)]
    for receipt in receipts:
        for each, written in zip(pending, receipt["receipts"], strict=True):
            each.add(receipt["key"], written, receipt["ids"])
        if clock.due():
            with clock:
                for each in pending:
                    each.commit()
                for compaction in joining:
                    compaction.step()
        yield receipt
    for each in pending:
        each.commit()


class _Pending:
    """What was written to an index and is not committed yet."""

    def __init__(self, index: PassageIndex, present: KeySet) -> None:
        self._committer, self._present = Committer(index), present
        self._receipts: dict[str, str] = {}
        self._replaced: list[str] = []

    def add(self, key: str, receipt: str, ids: Sequence[str]) -> None:
        self._receipts[key] = receipt
        held = self._present.has_ids(ids)
        self._replaced += [i for i, is_held in zip(ids, held.tolist(), strict=True) if is_held]

    def commit(self) -> None:
        self._committer.commit(self._receipts, self._replaced)
        self._receipts, self._replaced = {}, []


class _CommitClock:
    """Says when the next commit is due, and times each."""

    def __init__(self) -> None:
        self._next = 0.0
        self._start = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        end = time.monotonic()
        self._next = end + max(_COMMIT_EVERY_SECONDS, (end - self._start) / _COMMIT_SHARE)
