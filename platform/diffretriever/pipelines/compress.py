"""Compresses an index: trains a codec on a sample, encodes vectors in Ray tasks, and commits once."""

from __future__ import annotations

import time

from diffretriever.core.files import write_bytes
from diffretriever.core.ledger import Ledger
from diffretriever.core.progress import Progress
from diffretriever.index.rewrite import TablePart, files_exist, parts_of, replace_all, sample_of, write_part
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_file
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.tasks import call_each
from diffretriever.schemas.codec import StoredCodec
from diffretriever.schemas.compress import CompressJob, CompressSummary
from diffretriever.schemas.index import IndexManifest
from diffretriever.vectors.product import Codec

_CODEC_FILE = "codec.safetensors"
_SAMPLE = 131072
"""Vectors that a codec is trained on, drawn at random: more do not improve it."""


def compress_index(job: CompressJob) -> CompressSummary:
    """Run a compress job, on Ray if the index has several parts.

    A killed job leaves the index unchanged; the same job resumes.

    Raises:
        ValueError: The index has no vectors to compress, or they are no longer there.
    """
    started = time.monotonic()
    PassageIndex.open(job.index)
    with WriterLock(job.index):
        index = PassageIndex.open(job.index)
        _refuse(job, index)
        before, written = index.contents(), 0
        if index.manifest.codec is None:
            work = f"{job.index.rstrip('/')}/compressing"
            ledger = Ledger(f"{work}/{index.version}-{job.codec}")
            codec = _codec(job, index, ledger)
            write_bytes(codec_file(index.uri, codec.digest), codec.to_bytes())
            stored = StoredCodec(name=job.codec, digest=codec.digest, width=codec.bytes_per_vector)
            written = _write(index, index.manifest.model_copy(update={"codec": stored}), ledger)
            Ledger(work).clear()
        assert index.manifest.codec is not None, "it was there, or has just been committed"
        return CompressSummary(
            index=job.index,
            codec=job.codec,
            digest=index.manifest.codec.digest,
            passages=len(index),
            written=written,
            bytes_before=before.bytes,
            bytes_after=index.contents().bytes,
            seconds=time.monotonic() - started,
        )


def _refuse(job: CompressJob, index: PassageIndex) -> None:
    retriever = index.manifest.retriever
    if index.manifest.hidden_size is None:
        raise ValueError(f"{job.index} holds no vectors: there is nothing to compress")
    if not retriever.has_unit_vectors:
        raise ValueError(f"{job.index} holds vectors whose lengths count (similarity: dot), which codecs do not keep")
    if len(index) == 0:
        raise ValueError(f"{job.index} holds no passages to train a codec on: encode some first")
    codec = index.manifest.codec
    if codec is not None and codec.name != job.codec:
        raise ValueError(
            f"{job.index} holds {codec.name} codes and no vectors any more: encode the collection into a new index "
            f"to store it as {job.codec}"
        )


def _codec(job: CompressJob, index: PassageIndex, ledger: Ledger) -> Codec:
    trained = ledger.get(_CODEC_FILE)
    if trained is not None:
        return Codec.from_bytes(trained)
    codec = Codec.train(job.codec.bits, sample_of(index, _SAMPLE))
    ledger.put(_CODEC_FILE, codec.to_bytes())
    return codec


def _write(index: PassageIndex, manifest: IndexManifest, ledger: Ledger) -> int:
    """Write and commit the compressed table with its manifest; return the number of rows written now."""
    assert manifest.codec is not None, "the manifest to be is that of a compressed index"
    parts = parts_of(index)
    receipts = {part.key: receipt for part in parts if (receipt := _receipt(index, ledger, part)) is not None}
    todo = [part for part in parts if part.key not in receipts]
    rows = sum(part.rows for part in todo)
    calls = [(index.uri, index.version, part, manifest) for part in todo]
    with Progress(f"{index.uri} → {manifest.codec.name}", rows) as progress:
        written = call_each(write_part, calls)
        for part, receipt in zip(todo, written, strict=True):
            ledger.put(f"{part.key}.json", receipt.encode())
            receipts[part.key] = receipt
            progress.update(part.rows)
    replace_all(index, manifest, [receipts[part.key] for part in parts])
    return rows


def _receipt(index: PassageIndex, ledger: Ledger, part: TablePart) -> str | None:
    data = ledger.get(f"{part.key}.json")
    return data.decode() if data is not None and files_exist(index.uri, data.decode()) else None
