"""Encodes a collection into an index: scan, select, encode and write in blocks, commit exactly once.

Workers tokenise, encode and write blocks as uncommitted fragments (`blocks`); the driver commits them every two seconds
(`index_writer`). The collection is scanned first, so that a bad record ends the job early.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from diffretriever.collections import Collection, ScanResult, open_collection, scan, set_aside
from diffretriever.collections.chunks import ChunkedCollection
from diffretriever.collections.keys import PassageSelection
from diffretriever.collections.metadata import WithMetadata
from diffretriever.collections.quarantine import own_file, refuse_other_files
from diffretriever.core.files import is_local
from diffretriever.pipelines.blocks import MAX_ROWS, PassageBlocks, rows_per_block
from diffretriever.pipelines.chunking import chunked
from diffretriever.pipelines.executor import Executor, executor_for, few_passages
from diffretriever.pipelines.index_writer import IndexWriter
from diffretriever.pipelines.language import in_language_of
from diffretriever.presets import load_retriever
from diffretriever.schemas.encode import EncodeJob, EncodeSummary
from diffretriever.schemas.locations import StorePath, parse_location
from diffretriever.schemas.retriever import RetrieverConfig

_LOG = logging.getLogger(__name__)

_NOT_FINITE = "not finite"


def encode_collection(
    job: EncodeJob,
    smaller: Mapping[int, str] | None = None,
    *,
    collection: Collection | None = None,
    retriever: RetrieverConfig | None = None,
    executor: Executor | None = None,
) -> EncodeSummary:
    """Encode the passages that an index lacks, and commit each exactly once. A killed job resumes.

    Args:
        job: index, collection, retriever and options.
        smaller: K_p → URI of further indexes to write from the same forward passes; nested slots only.
        collection: replaces the job's collection.
        retriever: replaces the job's retriever.
        executor: default: this process for few passages, else Ray.

    Raises:
        ValueError: Bad input, another retriever than the index's, or a cluster that is too small; nothing was encoded.
            Or a passage encodes to NaN or infinity; committed passages stay.
    """
    started = time.monotonic()
    collection = collection or open_collection(job.collection, job.fields)
    quarantine = _quarantine_file(job, collection)
    if retriever is None:
        loaded = load_retriever(job.retriever, job.backbone, job.budget, job.adapter, job.protocol)
        retriever = in_language_of(collection, loaded.on(collection.name), job.language, job.index)
    collection = chunked(collection, job.chunk, retriever)
    executor = executor or executor_for(job, small=few_passages(collection, job.rows_per_block or MAX_ROWS))
    with executor, IndexWriter(job, collection, smaller or {}) as writer:
        executor.load(writer.begun(retriever))
        typed, scanned = _scan(job, writer.with_metadata(collection), quarantine, writer.selection, executor)
        manifest = executor.manifest().model_copy(update={"metadata": typed.columns})
        writer.create(manifest)
        if scanned.n_kept:
            rows = job.rows_per_block or rows_per_block(manifest.retriever, manifest.hidden_size)
            blocks = PassageBlocks(typed, scanned, rows)
            compactions = executor.compactions(writer.indexes, blocks.count)
            writer.write(executor.encode_passages(blocks, writer.indexes), scanned.n_kept, compactions)
        left_out = writer.left_out
        if left_out:
            assert quarantine is not None, "such passages are refused otherwise"
            set_aside(typed, left_out, f"{_NOT_FINITE}: the retriever encodes it so", quarantine)
        deleted = writer.delete_gone() if job.sync else 0
        writer.finish()
    n_bad = scanned.n_bad + len(left_out)
    return EncodeSummary(
        index=job.index,
        fingerprint=writer.indexes[0].manifest.fingerprint,
        encoded=scanned.n_kept - len(left_out),
        already_there=writer.selection.already_there,
        skipped=writer.selection.skipped,
        replaced=writer.selection.replaced - writer.selection.count_held(left_out),
        deleted=deleted,
        bad=n_bad,
        bad_reasons=scanned.reasons | ({_NOT_FINITE: len(left_out)} if left_out else {}),
        quarantine=str(quarantine) if n_bad else None,
        rows=len(writer.indexes[0]),
        chunk=collection.tokens if isinstance(collection, ChunkedCollection) else None,
        seconds=time.monotonic() - started,
        steady_rate=writer.steady_rate,
        device_share=writer.use.share,
        peak_memory=writer.use.peak_memory,
    )


def _quarantine_file(job: EncodeJob, collection: Collection) -> Path | StorePath | None:
    if job.on_bad_input == "error":
        return None
    path = parse_location(job.index) / ("quarantine.jsonl" if is_local(job.index) else "quarantine")
    quarantine = own_file(path, collection)
    refuse_other_files(quarantine, collection.inputs())
    return quarantine


def _scan(
    job: EncodeJob,
    collection: WithMetadata,
    quarantine: Path | StorePath | None,
    selection: PassageSelection,
    executor: Executor,
) -> tuple[WithMetadata, ScanResult]:
    """Return the collection with the columns of its metadata, and the passages that the indexes lack."""
    scanned = scan(collection, job.on_bad_input, quarantine, choose=selection, scan_parts=executor.scan_parts)
    if scanned.left_out:
        _LOG.warning(
            "%s: values such as lists and objects are not kept as metadata: those of %s",
            collection.name,
            ", ".join(scanned.left_out),
        )
    if scanned.n_records == 0:
        raise ValueError(f"collection '{collection.name}' is empty: is {collection.location()} whole?")
    collection = replace(collection, columns=scanned.columns)
    selection.refuse_conflicts(scanned.kept(collection))
    return collection, scanned
