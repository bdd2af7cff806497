"""Encodes a collection into an index: scan, select, encode and write in blocks, commit exactly once.

Workers tokenise, encode and write blocks as uncommitted fragments (`blocks`); the driver commits them every two seconds
(`index_writer`). The collection is scanned first, so that a bad record ends the job early.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.places import StorePath, as_place
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
    source = Source.open(job, collection, retriever)
    executor = executor or executor_for(job, small=few_passages(source.collection, job.rows_per_block or MAX_ROWS))
    with executor, IndexWriter(job, source.collection, smaller or {}) as writer:
        executor.load(writer.begun(source.retriever))
        selection = source.select(writer, executor)
        manifest = executor.manifest().model_copy(update={"metadata": selection.collection.columns})
        writer.create(manifest)
        if selection.scanned.n_kept:
            blocks = selection.blocks(manifest)
            compactions = executor.compactions(writer.indexes, blocks.count) if job.compact else []
            writer.write(executor.encode_passages(blocks, writer.indexes), selection.scanned.n_kept, compactions)
        selection.set_aside(writer.left_out)
        deleted = writer.delete_gone(selection.counts) if job.sync else 0
        writer.finish()
    return _summary(selection, writer, deleted, time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Source:
    """The passages to encode, and the retriever."""

    job: EncodeJob
    collection: Collection
    """Split into chunks if the job requests it."""
    retriever: RetrieverConfig
    quarantine: Path | StorePath | None
    """File for bad records; None: the job rejects them."""

    @classmethod
    def open(cls, job: EncodeJob, collection: Collection | None, retriever: RetrieverConfig | None) -> Source:
        """Open the job's collection and retriever, unless they are passed.

        Raises:
            ValueError: One is missing or malformed, or the quarantine path is another kind of file.
        """
        collection = collection or open_collection(job.collection, job.named_fields)
        quarantine = None
        if job.on_bad_input != "error":
            path = as_place(job.index) / ("quarantine.jsonl" if is_local(job.index) else "quarantine")
            quarantine = own_file(path, collection)
            refuse_other_files(quarantine, collection.inputs())
        if retriever is None:
            retriever = load_retriever(job.retriever, job.backbone, job.budget, job.adapter).on(collection.name)
            retriever = in_language_of(collection, retriever, job.language, job.index)
        return cls(job, chunked(collection, job.chunk, retriever), retriever, quarantine)

    def select(self, writer: IndexWriter, executor: Executor) -> Selection:
        """Scan the collection once, and select the passages that the indexes lack.

        Raises:
            ValueError: The collection is empty, or the job rejects bad records or passages whose text has changed.
        """
        counts = writer.selection()
        collection = writer.with_metadata(self.collection)
        policy, scan_parts = self.job.on_bad_input, executor.scan_parts
        scanned = scan(collection, policy, self.quarantine, choose=counts, scan_parts=scan_parts)
        if scanned.left_out:
            _LOG.warning(
                "%s: values such as lists and objects are not kept as metadata: those of %s",
                collection.name,
                ", ".join(scanned.left_out),
            )
        if scanned.n_records == 0:
            raise ValueError(f"collection '{collection.name}' is empty: is {collection.place()} whole?")
        collection = replace(collection, columns=scanned.columns)
        counts.refuse_conflicts(scanned.kept(collection))
        return Selection(self, collection, scanned, counts)


@dataclass(frozen=True, slots=True)
class Selection:
    """Result of a scan: the passages to encode, and counts of present, replaced and skipped passages."""

    source: Source
    collection: WithMetadata
    """With the columns of its metadata."""
    scanned: ScanResult
    counts: PassageSelection

    def blocks(self, manifest: IndexManifest) -> PassageBlocks:
        """Return the passages to encode, in blocks of about 32 MB."""
        rows = self.source.job.rows_per_block or rows_per_block(manifest.retriever, manifest.hidden_size)
        return PassageBlocks(self.collection, self.scanned, rows)

    def set_aside(self, left_out: list[str]) -> None:
        """Add passages that encode to NaN or infinity to the quarantine."""
        if left_out:
            assert self.source.quarantine is not None, "such passages are refused otherwise"
            reason = f"{_NOT_FINITE}: the retriever encodes it so"
            set_aside(self.collection, left_out, reason, self.source.quarantine)


def _summary(selection: Selection, writer: IndexWriter, deleted: int, seconds: float) -> EncodeSummary:
    source, scanned, counts, left_out = selection.source, selection.scanned, selection.counts, writer.left_out
    n_bad = scanned.n_bad + len(left_out)
    index = writer.indexes[0]
    return EncodeSummary(
        index=source.job.index,
        fingerprint=index.manifest.fingerprint,
        encoded=scanned.n_kept - len(left_out),
        already_there=counts.already_there,
        skipped=counts.skipped,
        replaced=counts.replaced - counts.count_held(left_out),
        deleted=deleted,
        bad=n_bad,
        bad_reasons=scanned.reasons | ({_NOT_FINITE: len(left_out)} if left_out else {}),
        quarantine=str(source.quarantine) if n_bad else None,
        rows=len(index),
        chunk=source.collection.tokens if isinstance(source.collection, ChunkedCollection) else None,
        seconds=seconds,
        steady_rate=writer.steady_rate,
        device_share=writer.use.share,
        peak_memory=writer.use.peak_memory,
    )
