"""A passage index: a Lance table with one row per passage, in the folder `passages.lance` of the index.

LanceDB opens it as the table `passages` of a connection to the index folder. A reader sees one version, which no writer
changes. If an index stores only quantised vectors, `index.vectors` decodes them into the column `reps`.

Legend: P passages of a fragment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, Self, TypeVar

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from diffretriever.collections.keys import KEY, KeySet, keys_of
from diffretriever.index import compaction
from diffretriever.index.commits import ChangedError, changed_by_another, commit_to, data_files, table_uri
from diffretriever.index.damage import (
    NOT_FOUND,
    deletion_files,
    not_opened,
    open_dataset,
    readable,
    refuse_wrong_deletions,
    remove_old_deletion_checksums,
    set_aside_unreadable,
    unreachable,
    write_deletion_checksums,
)
from diffretriever.index.manifest import manifest_in, table_schema
from diffretriever.index.order import PassageOrder
from diffretriever.index.vectors import with_vectors
from diffretriever.schemas.index import IndexContents, IndexManifest, representation_fields
from diffretriever.schemas.locations import plain_location
from diffretriever.vectors.representations import Representations, read_vectors

T = TypeVar("T", pa.Table, pa.RecordBatch)

_IDS_PER_LOOKUP = 1000
_SHOWN = ("title", "text", "collection")
_CACHED_BYTES = 32 << 20
"""Maximum size of the texts and metadata cached per version."""
_SCAN_SHARE = 0.02
"""Above this share of the passages, one full scan is faster than random reads."""
ROWS_AT_ONCE = 65536
"""Batch size for columns of few bytes."""
_EXISTS = "already exists"
"""Text of Lance's error for an existing table, which has no class of its own."""
_TRIES = 10
"""Attempts of a deletion, while other processes change the same fragments."""


class PassageIndex:
    """One version of an index, for reading and for small changes; `index.writer` writes many passages.

    `uri` is a folder, a `file:` URI or the URI of an object store.

    Example:
        >>> table = dr.PassageIndex.open("indexes/garden")
        >>> table.version, table.count_collections()
        (2, {'garden': 2})
    """

    _fragments: list[Any] | None = None
    """Lance fragments to read; None: all."""
    _condition: str | None = None
    """Condition, in Lance's SQL, of the passages to read."""

    def __init__(self, uri: str, dataset: Any, manifest: IndexManifest) -> None:
        self.uri = uri
        self.dataset = dataset
        self.manifest = manifest
        self._orders: dict[int, PassageOrder] = {}
        self._texts: dict[int, _Texts] = {}

    @classmethod
    def exists(cls, uri: str) -> bool:
        """Return whether the index exists; raise ValueError if it is damaged or access is denied."""
        uri = plain_location(uri)
        try:
            open_dataset(uri)
        except (ValueError, OSError) as error:
            if (reason := not_opened(uri, error)) is None:
                return False
            raise reason from error
        return True

    @classmethod
    def create(cls, uri: str, manifest: IndexManifest) -> PassageIndex:
        """Create an empty index.

        Raises:
            ValueError: the index exists, or its folder or store is not writable.
        """
        uri, schema = plain_location(uri), table_schema(manifest)
        try:
            with commit_to(uri):
                lance.write_dataset(schema.empty_table(), table_uri(uri), schema=schema, mode="create")
        except OSError as error:
            if _EXISTS in str(error):
                raise ValueError(f"{uri} already contains an index") from error
            raise unreachable(uri, error) from error
        return cls.open(uri)

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> PassageIndex:
        """Open the latest version, or an earlier one.

        Raises:
            ValueError: the index does not exist, is damaged, was made by another version of this project, or access is
                denied.
        """
        uri = plain_location(uri)
        try:
            dataset = open_dataset(uri, version)
        except (ValueError, OSError) as error:
            if version is None and (reason := not_opened(uri, error)) is not None:
                raise reason from error
            if NOT_FOUND not in str(error):
                raise unreachable(uri, error) from error
            if version is not None and cls.exists(uri):
                raise ValueError(
                    f"{uri} has no version {version}: list versions with "
                    "inspect_index.py, or in Python Index.versions()"
                ) from error
            raise ValueError(
                f"no index at {uri}: make one with encode_beir.py --index {uri} --collection …, "
                "or in Python Index.create"
            ) from error
        opened = cls(uri, dataset, manifest_in(dataset, uri))
        refuse_wrong_deletions(uri, dataset)
        return opened

    def clone(self, uri: str) -> PassageIndex:
        """Make an index of this version at `uri`, which reads this index's files; raise ValueError if not writable."""
        uri = plain_location(uri)
        try:
            with commit_to(uri):
                self.dataset.shallow_clone(table_uri(uri), self.version)
        except OSError as error:
            raise unreachable(uri, error) from error
        return PassageIndex.open(uri)

    @property
    def version(self) -> int:
        """Number of the open version."""
        return int(self.dataset.version)

    def refresh(self) -> None:
        """Move to the latest version."""
        self.dataset = lance.dataset(table_uri(self.uri))
        self.manifest = manifest_in(self.dataset, self.uri)
        self._orders, self._texts = {}, {}

    def versions(self) -> Iterator[PassageIndex]:
        """Yield every stored version, oldest first."""
        for version in self.dataset.versions():
            yield PassageIndex.open(self.uri, version["version"])

    def __len__(self) -> int:
        with readable(self.uri, self.fragments):
            return int(self.dataset.count_rows())

    def batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream `columns` of all passages in table order; memory is bounded by a few batches."""
        yield from self._scan(columns, batch_size, self.dataset.scanner, fragments=self._fragments)

    def addressed_batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream as `batches`, with `_rowaddr` (uint64): fragment and row of each passage."""
        scanner = self.dataset.scanner
        yield from self._scan(columns, batch_size, scanner, fragments=self._fragments, with_row_address=True)

    @property
    def order(self) -> PassageOrder:
        """Order of this version's passages by id, computed at first use."""
        version = self.version
        order = self._orders.get(version)
        if order is None:
            rows = self.addressed_batches(["id"], ROWS_AT_ONCE)
            computed = PassageOrder.of(self.dataset.get_fragments(), self.fragments(), rows)
            # Threads must share one order, because numbers of different orders do not mix.
            order = self._orders.setdefault(version, computed)
        return order

    def fragments(self) -> list[Any]:
        """Return the Lance fragments, in table order."""
        return list(self.dataset.get_fragments() if self._fragments is None else self._fragments)

    def fragment_batches(self, fragment: Any, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream columns of a fragment's live rows, with `_rowaddr` (uint64; the low half is the row as written)."""
        yield from self._scan(columns, batch_size, fragment.scanner, with_row_address=True)

    def _scan(
        self, columns: Sequence[str], batch_size: int, scanner: Callable[..., Any], **options: Any
    ) -> Iterator[pa.RecordBatch]:
        # Lance takes an empty list as all fragments.
        if self._fragments == []:
            return
        stored = self.manifest.stored_columns(columns)
        with readable(self.uri, self.fragments):
            scan = scanner(columns=stored, filter=self._condition, batch_size=batch_size, **options)
            for batch in scan.to_batches():
                yield self._decoded(batch, columns)

    def _decoded(self, rows: T, columns: Sequence[str]) -> T:
        return with_vectors(self.uri, self.manifest, rows, columns) if self.manifest.codec else rows

    def pinned(self) -> Self:
        """Return a copy that `refresh` does not change."""
        pinned = copy(self)
        pinned.dataset = self.dataset.checkout_version(self.version)
        return pinned

    def take(self, rows: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return columns of the passages in `rows` (int64) of this version, in their order."""
        with readable(self.uri, self.fragments):
            taken = self.dataset.take(rows.tolist(), columns=self.manifest.stored_columns(columns))
        return self._decoded(taken, columns)

    def vectors_of(self, numbers_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of passages by number (int32 [C]): float16 [N, H], and offsets, int64 [C + 1]."""
        rows_P = self.order.passages.rows_P
        assert rows_P is not None, "passages of an index have rows"
        return read_vectors(self.take(rows_P[numbers_C], ["reps"]))

    def shown(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Return `title`, `text`, `collection` and `metadata` of the passages in `rows` (int64).

        `metadata` has all metadata columns by name; missing values are None. A small collection is cached after some
        calls.
        """
        columns = [*_SHOWN, *self.manifest.metadata]
        texts = self._texts.setdefault(self.version, _Texts())
        if texts.table is not None:
            return [self._with_metadata(row) for row in texts.table.take(rows).to_pylist()]
        taken, passages = self.take(rows, columns), self.dataset.count_rows()
        texts.rows_read += len(taken)
        if texts.rows_read > _SCAN_SHARE * passages and passages * taken.nbytes <= _CACHED_BYTES * len(taken):
            # If a file is damaged, passages in other files can still be read singly.
            with suppress(ValueError), readable(self.uri, self.fragments):
                texts.table = self.dataset.to_table(columns).combine_chunks()
        return [self._with_metadata(row) for row in taken.to_pylist()]

    def _with_metadata(self, row: dict[str, Any]) -> dict[str, Any]:
        metadata = {name: row.pop(name) for name in self.manifest.metadata}
        return {**row, "metadata": metadata}

    def representations(self, rows: np.ndarray) -> Representations:
        """Return the stored representations of the passages in `rows` (int64), in order."""
        assert self.manifest.hidden_size is not None, "an index with an encoder has vectors"
        columns = [field.name for field in representation_fields(self.manifest.hidden_size)]
        return Representations.from_arrow(self.take(rows, columns))

    def keys(self) -> KeySet:
        """Return the keys of all passages."""
        keys = np.zeros(len(self), KEY)
        start = 0
        for batch in self.batches(["id", "digest"], ROWS_AT_ONCE):
            batch_keys = keys_of(batch.column("id").to_pylist(), batch.column("digest").to_pylist())
            keys[start : start + len(batch_keys)] = batch_keys
            start += len(batch_keys)
        return KeySet(keys)

    def passages(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the fields of passages as `shown`, by id; unknown ids are left out."""
        passages: dict[str, dict[str, Any]] = {}
        columns = ["id", *_SHOWN, *self.manifest.metadata]
        for start in range(0, len(ids), _IDS_PER_LOOKUP):
            condition = ids_filter(ids[start : start + _IDS_PER_LOOKUP])
            with readable(self.uri, self.fragments):
                rows = self.dataset.to_table(columns, filter=condition).to_pylist()
            passages.update({row.pop("id"): self._with_metadata(row) for row in rows})
        return passages

    def delete(self, ids: Iterable[str]) -> int:
        """Delete passages by id in one commit and return their number.

        Raises:
            ValueError: other processes kept changing these passages; nothing was deleted.
        """
        requested = list(ids)
        for _ in range(_TRIES - 1):
            with suppress(ChangedError):
                return self._delete(requested)
        return self._delete(requested)

    def _delete(self, ids: Sequence[str]) -> int:
        self.refresh()
        shrunk = self.without(ids)
        # If no passage matches, there is no new version.
        if not shrunk:
            return 0
        rest = [part for part in shrunk.values() if part is not None]
        live = sum(self.dataset.get_fragment(number).metadata.num_rows for number in shrunk)
        emptied = [number for number, part in shrunk.items() if part is None]
        operation = lance.LanceOperation.Delete(rest, emptied, ids_filter(ids))
        with commit_to(self.uri, deletion_files(rest)):
            lance.LanceDataset.commit(self.dataset, operation, read_version=self.version)
        self.refresh()
        return live - sum(part.num_rows for part in rest)

    def without(self, ids: Sequence[str]) -> dict[int, FragmentMetadata | None]:
        """Return the affected fragments, by number, after deleting passages; None for an emptied fragment.

        Writes the deletion files and their checksums; a commit publishes them.
        """
        if not ids:
            return {}
        rows = self.dataset.scanner(columns=["id"], filter=ids_filter(ids), with_row_address=True).to_table()
        by_fragment: dict[int, list[str]] = defaultdict(list)
        for passage_id, address in zip(rows["id"].to_pylist(), rows["_rowaddr"].to_pylist(), strict=True):
            by_fragment[address >> 32].append(passage_id)
        shrunk = {n: self.dataset.get_fragment(n).delete(ids_filter(deleted)) for n, deleted in by_fragment.items()}
        files = deletion_files(part for part in shrunk.values() if part is not None)
        write_deletion_checksums(self.uri, files)
        return shrunk

    def commit_compaction(self, results: Sequence[str]) -> None:
        """Replace fragments by the joined ones of `compaction.execute`, in one commit.

        Raises:
            ValueError: another process changed the index; nothing is committed.
        """
        if not results:
            return
        latest = lance.dataset(table_uri(self.uri))
        if latest.version != self.version or not all(compaction.is_current(latest, result) for result in results):
            raise changed_by_another(self.uri)
        with commit_to(self.uri, data_files(compaction.joined(results))):
            compaction.commit(latest, results)
        self.dataset = latest

    def forget_versions(self, older_than: timedelta = timedelta(hours=1)) -> None:
        """Move to the latest version, and remove older versions with their files.

        The previous version stays unless `older_than` is 0, because a clock jump can make it look old. Readers of a
        removed version must reopen the index. Uncommitted files of killed jobs are removed after seven days.
        """
        self.refresh()
        self.dataset.cleanup_old_versions(older_than=older_than, retain_versions=2 if older_than else None)
        remove_old_deletion_checksums(self.uri)

    @classmethod
    def restore(cls, uri: str, version: int) -> PassageIndex:
        """Commit an older version as the latest; later versions stay until they are removed.

        In a folder, the newest manifests that cannot be read are renamed first.

        Raises:
            ValueError: the version is no longer stored, or another process changed the index.
        """
        older = cls.open(uri, version)
        set_aside_unreadable(older.uri)
        with commit_to(older.uri):
            older.dataset.restore()
        return cls.open(uri)

    def count_collections(self) -> dict[str, int]:
        """Return the number of passages per collection, by name; reads a column of the table."""
        counts: Counter[str] = Counter()
        for batch in self.batches(["collection"], ROWS_AT_ONCE):
            counts.update(batch.column("collection").to_pylist())
        return dict(sorted(counts.items()))

    def contents(self) -> IndexContents:
        """Count the passages, fragments and bytes of this version."""
        fragments = self.dataset.get_fragments()
        return IndexContents(
            rows=len(self),
            collections=self.count_collections(),
            version=self.version,
            fragments=len(fragments),
            deleted_rows=sum(fragment.num_deletions for fragment in fragments),
            bytes=sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.data_files()),
        )


@dataclass
class _Texts:
    """Cache of the texts and metadata of a version."""

    rows_read: int = 0
    table: pa.Table | None = None
    """All passages, in table order."""


def rows_written(addresses: np.ndarray) -> np.ndarray:
    """Return uint32: each passage's row in its fragment as written, from `_rowaddr`."""
    return (addresses & 0xFFFFFFFF).astype(np.uint32)


def fragment_key(fragment: Any) -> str:
    """Return a name for a fragment's rows, which deletions and added columns do not change."""
    return PurePosixPath(fragment.data_files()[0].path).stem


def ids_filter(ids: Iterable[str]) -> str:
    """Return the SQL condition that selects passages by id."""
    quoted = ", ".join("'" + passage_id.replace("'", "''") + "'" for passage_id in ids)
    return f"id IN ({quoted})"
