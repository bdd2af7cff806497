"""Collection to index: read, prepare and encode on Ray Data, commit from the driver, exactly once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from diffretriever.collections import Collection, Passage, ScanResult, open_collection, scan
from diffretriever.files import is_local, write_text
from diffretriever.index.identity import bm25_manifest, check_same
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock
from diffretriever.pipelines.blocks import rows_per_block
from diffretriever.pipelines.cluster import EncoderPool, ray_session, size_pool
from diffretriever.pipelines.description import describe_encoder
from diffretriever.pipelines.graph import read, receipts
from diffretriever.pipelines.progress import Progress
from diffretriever.presets import load_retriever
from schemas.encode import EncodeSummary
from schemas.jobs import EncodeJob
from schemas.retriever import Bm25Retriever, NeuralRetriever, RetrieverConfig

_COMMIT_EVERY_SECONDS = 2.0
# A commit rewrites the list of fragments: on a table with many, commit less often rather than spend time on it.
_COMMIT_SHARE = 0.02
_CONFLICTS_NAMED = 5


def encode_collection(job: EncodeJob) -> EncodeSummary:
    """Run an encode job in the Ray session at hand, or in one of its own.

    A job that is killed leaves a valid index with what it had committed; the same job run again adds the rest.

    Raises:
        ValueError: bad input, a retriever other than the index's, or a request the cluster cannot meet; nothing has
            been encoded then.
    """
    started = time.monotonic()
    collection = open_collection(job.collection)
    retriever = load_retriever(job.retriever, job.backbone, job.budget, job.adapter)
    with ray_session(job), WriterLock(job.index):
        pool = size_pool(job)
        index = _open_index(job.index, retriever, pool)
        wanted = _Wanted(job, index.digests())
        quarantine = _quarantine_path(job)
        scanned = scan(collection, job.on_bad_input, quarantine, keep=wanted)
        wanted.refuse_conflicts()
        write_text(f"{job.index.rstrip('/')}/encode.yaml", job.to_yaml())
        rate = _run(job, index, collection, scanned, wanted, pool) if scanned.n_kept else 0.0
        if job.compact and scanned.n_kept:
            index.compact()
    return EncodeSummary(
        index=job.index,
        fingerprint=index.manifest.fingerprint,
        encoded=scanned.n_kept,
        already_there=wanted.already_there,
        skipped=wanted.skipped,
        replaced=len(wanted.replaced),
        bad=scanned.n_bad,
        bad_reasons=scanned.reasons,
        quarantine=str(quarantine) if scanned.n_bad else None,
        rows=len(index),
        seconds=time.monotonic() - started,
        steady_rate=rate,
    )


@dataclass
class _Wanted:
    """Decides which passages of the collection to encode, given what the index holds."""

    job: EncodeJob
    present: dict[str, bytes]
    already_there: int = 0
    skipped: int = 0
    replaced: set[str] = field(default_factory=set)
    conflicts: int = 0
    first_conflicts: list[str] = field(default_factory=list)

    def __call__(self, passage: Passage) -> bool:
        digest = self.present.get(passage.id)
        if digest is None:
            return True
        if digest == passage.digest:
            self.already_there += 1
            return False
        if self.job.on_existing == "replace":
            self.replaced.add(passage.id)
            return True
        if self.job.on_existing == "skip":
            self.skipped += 1
            return False
        self.conflicts += 1
        self.first_conflicts += [passage.id] if self.conflicts <= _CONFLICTS_NAMED else []
        return False

    def refuse_conflicts(self) -> None:
        """Stop before anything is encoded if passages changed and the job does not say what to do with them."""
        if self.conflicts == 0:
            return
        names = ", ".join(f"'{i}'" for i in self.first_conflicts) + (", …" if self.conflicts > _CONFLICTS_NAMED else "")
        raise ValueError(
            f"{self.conflicts} passages are in {self.job.index} with another text ({names}): say --on-existing replace "
            "to replace such passages, or --on-existing skip to leave them as they are"
        )


def _open_index(uri: str, retriever: RetrieverConfig, pool: EncoderPool) -> PassageIndex:
    existing = PassageIndex.open(uri) if PassageIndex.exists(uri) else None
    if isinstance(retriever, Bm25Retriever):
        manifest = bm25_manifest(retriever)
    else:
        manifest = describe_encoder(_with_dtype_of(retriever, existing), pool)
    if existing is None:
        return PassageIndex.create(uri, manifest)
    check_same(existing.manifest, manifest, uri)
    return existing


def _with_dtype_of(retriever: NeuralRetriever, existing: PassageIndex | None) -> NeuralRetriever:
    """An index stays in the precision it was begun in, whatever a probe would choose today."""
    if existing is None or isinstance(existing.manifest.retriever, Bm25Retriever) or retriever.backbone.dtype != "auto":
        return retriever
    place = retriever.backbone.model_copy(update={"dtype": existing.manifest.retriever.backbone.dtype})
    return retriever.model_copy(update={"backbone": place})


def _run(
    job: EncodeJob,
    index: PassageIndex,
    collection: Collection,
    scanned: ScanResult,
    wanted: _Wanted,
    pool: EncoderPool,
) -> float:
    """Encode the kept passages and commit them as they come; return the steady rate in passages per second."""
    manifest = index.manifest
    rows = job.rows_per_block or rows_per_block(manifest.retriever, manifest.hidden_size)
    stream = receipts(read(collection, scanned, rows), index, pool, job.threads_per_encoder)
    committer, clock = Committer(index), _CommitClock()
    pending: dict[str, str] = {}
    replaced: list[str] = []
    finished: list[tuple[float, int]] = []
    with Progress(f"{collection.name} → {job.index}", scanned.n_kept) as progress:
        for receipt in stream:
            pending[receipt["key"]] = receipt["receipt"]
            replaced += [i for i in receipt["ids"] if i in wanted.replaced]
            if clock.due():
                with clock:
                    committer.commit(pending, replaced)
                pending, replaced = {}, []
            finished.append((time.monotonic(), len(receipt["ids"])))
            progress.update(len(receipt["ids"]), receipt["tokens"], receipt["padded_tokens"])
        committer.commit(pending, replaced)
    done = sum(count for _, count in finished)
    if done != scanned.n_kept:
        raise RuntimeError(f"{scanned.n_kept} passages went in and {done} came out: run the same command again")
    return _steady_rate(finished)


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
