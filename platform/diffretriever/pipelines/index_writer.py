"""Locks, commits to and finishes the indexes of an encode job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import compress
from typing import TYPE_CHECKING, Any, Self

from diffretriever.collections import Collection
from diffretriever.collections.keys import KeySet, PassageSelection
from diffretriever.collections.metadata import WithMetadata
from diffretriever.core.files import write_text
from diffretriever.core.progress import Progress
from diffretriever.index.collection_records import record_location, record_progress, refuse_other_locations
from diffretriever.index.damage import named
from diffretriever.index.manifest import check_same
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock
from diffretriever.pipelines.accelerate import accelerate_index
from diffretriever.pipelines.blocks import DeviceUse, Receipt
from diffretriever.pipelines.compact import compact_index
from diffretriever.pipelines.encoder_start import as_begun
from diffretriever.schemas.base import suggest
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RetrieverConfig, has_slots, is_neural

if TYPE_CHECKING:
    from diffretriever.pipelines.ray_executor import CompactionBeside

_COMMIT_EVERY_SECONDS = 2.0
# A commit rewrites the list of fragments, so tables with many fragments are committed less often.
_COMMIT_SHARE = 0.02
_DELETED_AT_ONCE = 10_000
_ROWS_AT_ONCE = 65_536


class IndexWriter:
    """Writes a collection to an index, and to indexes of smaller budgets; a context manager that locks them.

    Each block is committed exactly once: a killed job leaves valid indexes, and the same job resumes.

    Attributes:
        selection: selects the passages that the indexes lack.
        left_out: ids of passages that encode to NaN or infinity and were not written.
        use: how much of the time the encoders' devices computed.
    """

    def __init__(self, job: EncodeJob, collection: Collection, smaller: Mapping[int, str]) -> None:
        """Store the job; `smaller` maps K_p to the URI of each index of a smaller budget."""
        self._job, self._collection, self._smaller = job, collection, smaller
        self._uris = (job.index, *smaller.values())
        self._locks = ExitStack()
        self._finished: list[tuple[float, int]] = []
        self.indexes: list[PassageIndex] = []
        self.left_out: list[str] = []
        self.use = DeviceUse()

    def __enter__(self) -> Self:
        """Lock the indexes, and open those that exist.

        Raises:
            ValueError: Another job writes to one, or a sync job's collection was indexed from another path.
        """
        with ExitStack() as locks:
            for uri in self._uris:
                locks.enter_context(WriterLock(uri))
                if self._job.sync:
                    refuse_other_locations(uri, self._collection)
            self._existing = [PassageIndex.open(uri) if PassageIndex.exists(uri) else None for uri in self._uris]
            self._present = [KeySet.none() if index is None else index.keys() for index in self._existing]
            self.selection = PassageSelection(self._job, self._present)
            self._locks = locks.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._locks.__exit__(*error)

    def begun(self, retriever: RetrieverConfig) -> RetrieverConfig:
        """Return the retriever with the precision and hub commits of the existing index."""
        existing = self._existing[0]
        if existing is None or not is_neural(retriever) or not is_neural(existing.manifest.retriever):
            return retriever
        backbone = as_begun(retriever.backbone, existing.manifest.retriever.backbone)
        return retriever.model_copy(update={"backbone": backbone})

    def with_metadata(self, source: Collection) -> WithMetadata:
        """Return the collection with the metadata columns of the indexes; of a new index, the job's choice.

        Raises:
            ValueError: The index lacks a column that the job names, or the indexes have different columns.
        """
        requested = self._job.metadata_wanted
        columns = [index.manifest.metadata for index in self._existing if index is not None]
        if not columns:
            return WithMetadata(source, requested)
        if any(other != columns[0] for other in columns):
            different = " and ".join(map(str, columns))
            raise ValueError(f"the indexes have different metadata: {different}: create them again")
        for name in requested or ():
            if name not in columns[0]:
                known = suggest(name, columns[0]) if columns[0] else " It has no metadata."
                raise ValueError(
                    f"--metadata: {self._job.index} has no column '{name}': create it again to add one.{known}"
                )
        return WithMetadata(source, requested, columns[0])

    def create(self, manifest: IndexManifest) -> None:
        """Create missing indexes, and record the job and the collection's path in each folder.

        Raises:
            ValueError: An existing index was made by another retriever.
        """
        manifests = [manifest, *(_with_budget(manifest, budget) for budget in self._smaller)]
        for uri, existing, expected in zip(self._uris, self._existing, manifests, strict=True):
            if existing is not None:
                check_same(existing.manifest, expected, uri)
            self.indexes.append(existing or PassageIndex.create(uri, expected))
        for index in self.indexes:
            write_text(f"{index.uri.rstrip('/')}/encode.yaml", self._job.to_yaml())
            record_location(index.uri, self._collection)

    def write(self, receipts: Iterable[Receipt], total: int, compactions: Sequence[CompactionBeside]) -> None:
        """Commit blocks as they arrive, and run compactions after each commit.

        `total` is the number of passages. A new row replaces the old row of its id in the same commit.

        Raises:
            ValueError: A passage encodes to NaN or infinity, and the job rejects it; earlier blocks are committed.
            RuntimeError: Blocks were lost.
        """
        for index in self.indexes:
            record_progress(index.uri, self._collection, finished=False)
        due, pending = 0.0, list[Receipt]()
        committers = [Committer(index) for index in self.indexes]
        with Progress(f"{self._collection.name} → {self._job.index}", total) as progress:
            for receipt in receipts:
                pending.append(receipt)
                if time.monotonic() >= due:
                    began = time.monotonic()
                    self._commit(committers, pending)
                    for compaction in compactions:
                        compaction.step()
                    ended = time.monotonic()
                    due = ended + max(_COMMIT_EVERY_SECONDS, (ended - began) / _COMMIT_SHARE)
                progress.update(self._count(receipt), receipt["tokens"], receipt["padded_tokens"])
                if receipt["not_finite"] and self._job.on_bad_input == "error":
                    break
            self._commit(committers, pending)
        self._refuse_incomplete(total)
        for compaction in compactions:
            compaction.finish()

    def _commit(self, committers: Sequence[Committer], pending: list[Receipt]) -> None:
        ids = [passage_id for receipt in pending for passage_id in receipt["ids"]]
        for number, (committer, present) in enumerate(zip(committers, self._present, strict=True)):
            replaced = list(compress(ids, present.has_ids(ids).tolist()))
            committer.commit({receipt["key"]: receipt["receipts"][number] for receipt in pending}, replaced)
        pending.clear()

    def _count(self, receipt: Receipt) -> int:
        """Count a receipt; return the number of its passages."""
        count = len(receipt["ids"]) + len(receipt["not_finite"])
        self._finished.append((time.monotonic(), count))
        self.left_out += receipt["not_finite"]
        self.use.add(receipt)
        return count

    def _refuse_incomplete(self, total: int) -> None:
        if self.left_out and self._job.on_bad_input == "error":
            raise ValueError(
                f"collection '{self._collection.name}': {named(self.left_out)} would be stored with NaN or infinity; "
                f"what was committed to {self._job.index} stays. Look for damaged weights, or leave such passages out "
                "and have them listed with --on-bad-input quarantine; the same command then goes on"
            )
        done = sum(count for _, count in self._finished)
        if done != total:
            raise RuntimeError(f"{total} passages went in and {done} came out: run the same command again")

    @property
    def steady_rate(self) -> float:
        """Passages per second, without the first block, because its time includes loading the encoders."""
        if len(self._finished) < 2:
            return 0.0
        seconds = self._finished[-1][0] - self._finished[0][0]
        return sum(count for _, count in self._finished[1:]) / max(seconds, 1e-9)

    def delete_gone(self) -> int:
        """Delete indexed passages that the collection no longer has; return their number."""
        deleted = 0
        for index in self.indexes:
            gone = self.selection.gone(index.batches(["id", "collection"], _ROWS_AT_ONCE), self._collection.name)
            groups = (gone[at : at + _DELETED_AT_ONCE] for at in range(0, len(gone), _DELETED_AT_ONCE))
            deleted = sum(map(index.delete, groups))
        return deleted

    def finish(self) -> None:
        """Compact each index and, if the job requests it, write its derived files.

        Runs even if nothing was written, because an earlier attempt may have been killed before this step.
        """
        for index in self.indexes:
            compact_index(index)
            if self._job.accelerate:
                accelerate_index(index)
            record_progress(index.uri, self._collection, finished=True)


def _with_budget(manifest: IndexManifest, passage_budget: int) -> IndexManifest:
    retriever = manifest.retriever
    assert has_slots(retriever), "only such retrievers have smaller budgets"
    assert retriever.nested_slots, "other slots depend on the number of slots"
    assert passage_budget < retriever.budget.passage, "the largest budget is the job's own"
    budget = Budget(retriever.budget.query, passage_budget)
    return manifest.model_copy(update={"retriever": retriever.model_copy(update={"budget": budget})})
