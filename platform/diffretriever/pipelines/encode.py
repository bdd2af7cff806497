"""Collection to index: read, prepare and encode on Ray Data, commit from the driver, exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from diffretriever.collections import Collection, ScanResult, open_collection, scan, set_aside
from diffretriever.collections.quarantine import refuse_other_files
from diffretriever.files import is_local, write_text
from diffretriever.index.finite import named
from diffretriever.index.identity import bm25_manifest, check_same
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.blocks import rows_per_block
from diffretriever.pipelines.cluster import EncoderPool, ray_session, size_pool
from diffretriever.pipelines.commits import committed
from diffretriever.pipelines.description import describe_encoder
from diffretriever.pipelines.graph import read, receipts
from diffretriever.pipelines.progress import Progress
from diffretriever.pipelines.wanted import Wanted
from diffretriever.presets import load_retriever
from schemas.budget import Budget
from schemas.encode import EncodeSummary
from schemas.jobs import EncodeJob
from schemas.manifest import IndexManifest
from schemas.retriever import Bm25Retriever, MaskedRetriever, NeuralRetriever, RetrieverConfig

_NOT_FINITE = "not finite"


def encode_collection(job: EncodeJob, smaller: Mapping[int, str] | None = None) -> EncodeSummary:
    """Run an encode job in the Ray session at hand, or in one of its own.

    A job that is killed leaves a valid index with what it had committed; the same job run again adds the rest.

    Args:
        job: of the index.
        smaller: K_p → uri of further indexes, each with a smaller budget, to write from the same forward passes. Only
            for nested slots.

    Raises:
        ValueError: bad input, a retriever other than the index's, or a request the cluster cannot meet; nothing has
            been encoded then. Or a passage is encoded as NaN or infinity: what was committed stays.
    """
    started = time.monotonic()
    smaller = smaller or {}
    collection = open_collection(job.collection)
    quarantine = _quarantine_path(job)
    if quarantine is not None:
        refuse_other_files(quarantine, collection.inputs())
    retriever = load_retriever(job.retriever, job.backbone, job.budget, job.adapter)
    with ray_session(job), ExitStack() as locks:
        for uri in (job.index, *smaller.values()):
            locks.enter_context(WriterLock(uri))
        pool = size_pool(job)
        indexes = _open_indexes(job.index, smaller, retriever, pool)
        wanted = Wanted(job, [index.digests() for index in indexes])
        scanned = scan(collection, job.on_bad_input, quarantine, keep=wanted)
        wanted.refuse_conflicts()
        for index in indexes:
            write_text(f"{index.uri.rstrip('/')}/encode.yaml", job.to_yaml())
        rate, left_out = _run(job, indexes, collection, scanned, wanted, pool) if scanned.n_kept else (0.0, [])
        if left_out:
            assert quarantine is not None, "such passages are refused otherwise"
            set_aside(collection, left_out, f"{_NOT_FINITE}: the retriever encodes it so", quarantine)
        if job.compact and scanned.n_kept:
            for index in indexes:
                index.compact()
    return EncodeSummary(
        index=job.index,
        fingerprint=indexes[0].manifest.fingerprint,
        encoded=scanned.n_kept - len(left_out),
        already_there=wanted.already_there,
        skipped=wanted.skipped,
        replaced=wanted.replaced - sum(any(i in held for held in wanted.present) for i in left_out),
        bad=scanned.n_bad + len(left_out),
        bad_reasons=scanned.reasons | ({_NOT_FINITE: len(left_out)} if left_out else {}),
        quarantine=str(quarantine) if scanned.n_bad + len(left_out) else None,
        rows=len(indexes[0]),
        seconds=time.monotonic() - started,
        steady_rate=rate,
    )


def _open_indexes(
    uri: str, smaller: Mapping[int, str], retriever: RetrieverConfig, pool: EncoderPool
) -> list[PassageIndex]:
    """Open or create the job's index, and those of smaller K_p, which differ from it in nothing but their budget."""
    existing = _existing(uri)
    if isinstance(retriever, Bm25Retriever):
        manifest = bm25_manifest(retriever)
    else:
        manifest = describe_encoder(_with_dtype_of(retriever, existing), pool)
    others = (_opened(place, _existing(place), _cut(manifest, budget)) for budget, place in smaller.items())
    return [_opened(uri, existing, manifest), *others]


def _existing(uri: str) -> PassageIndex | None:
    return PassageIndex.open(uri) if PassageIndex.exists(uri) else None


def _opened(uri: str, existing: PassageIndex | None, manifest: IndexManifest) -> PassageIndex:
    if existing is None:
        return PassageIndex.create(uri, manifest)
    check_same(existing.manifest, manifest, uri)
    return existing


def _cut(manifest: IndexManifest, passage_budget: int) -> IndexManifest:
    retriever = manifest.retriever
    assert isinstance(retriever, MaskedRetriever), "only such retrievers have smaller budgets"
    assert retriever.nested_slots, "other slots depend on the number of slots"
    assert passage_budget < retriever.budget.passage, "the largest budget is the job's own"
    budget = Budget(retriever.budget.query, passage_budget)
    return manifest.model_copy(update={"retriever": retriever.model_copy(update={"budget": budget})})


def _with_dtype_of(retriever: NeuralRetriever, existing: PassageIndex | None) -> NeuralRetriever:
    """An index stays in the precision it was begun in, whatever a probe would choose today."""
    if existing is None or isinstance(existing.manifest.retriever, Bm25Retriever) or retriever.backbone.dtype != "auto":
        return retriever
    place = retriever.backbone.model_copy(update={"dtype": existing.manifest.retriever.backbone.dtype})
    return retriever.model_copy(update={"backbone": place})


def _run(
    job: EncodeJob,
    indexes: list[PassageIndex],
    collection: Collection,
    scanned: ScanResult,
    wanted: Wanted,
    pool: EncoderPool,
) -> tuple[float, list[str]]:
    """Encode the kept passages and commit them as they come.

    Returns:
        The steady rate in passages per second, and the ids of passages that were left out as not finite.
    """
    manifest = indexes[0].manifest
    rows = job.rows_per_block or rows_per_block(manifest.retriever, manifest.hidden_size)
    stream = receipts(read(collection, scanned, rows), indexes, pool, job.threads_per_encoder)
    if job.on_bad_input == "error":
        stream = _until_not_finite(stream)
    finished: list[tuple[float, int]] = []
    left_out: list[str] = []
    with Progress(f"{collection.name} → {job.index}", scanned.n_kept) as progress:
        for receipt in committed(stream, indexes, wanted.present):
            count = len(receipt["ids"]) + len(receipt["not_finite"])
            finished.append((time.monotonic(), count))
            left_out += receipt["not_finite"]
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
    return _steady_rate(finished), left_out


def _until_not_finite(receipts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """End after the first block with a passage that was left out: what is done is committed, the rest not begun."""
    for receipt in receipts:
        yield receipt
        if receipt["not_finite"]:
            return


def _steady_rate(finished: list[tuple[float, int]]) -> float:
    if len(finished) < 2:
        return 0.0
    return sum(count for _, count in finished[1:]) / max(finished[-1][0] - finished[0][0], 1e-9)


def _quarantine_path(job: EncodeJob) -> Path | None:
    if job.on_bad_input == "error":
        return None
    if job.quarantine is not None:
        return job.quarantine
    return Path(job.index) / "quarantine.jsonl" if is_local(job.index) else Path("quarantine.jsonl")
