"""A passage index: a Lance table with one row per passage, in the folder `passages.lance` of the index.

LanceDB opens it as the table `passages` of a connection on the folder of the index. A reader reads one version, which
no writer changes. The column `reps` can be read of every index with vectors: if it stores codes only, `index.vectors`
decodes them.

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
    forget_deletions,
    not_opened,
    note_deletions,
    readable,
    refuse_wrong_deletions,
    set_aside_unreadable,
    unreachable,
    without_panics,
    wrong_deletions,
)
from diffretriever.index.manifest import manifest_in, table_schema
from diffretriever.index.order import PassageOrder
from diffretriever.index.vectors import with_vectors
from diffretriever.schemas.index import IndexContents, IndexManifest, representation_fields
from diffretriever.schemas.places import plain_place
from diffretriever.vectors.representations import Representations, read_vectors

T = TypeVar("T", pa.Table, pa.RecordBatch)

_IDS_PER_LOOKUP = 1000
_SHOWN = ("title", "text", "collection")
_HELD_BYTES = 32 << 20
"""Texts and metadata of a version that stay in memory."""
_PAYS = 0.02
"""Above this share of the passages, one full scan is faster than random reads."""
ROWS_AT_ONCE = 65536
"""Batch size for columns of few bytes."""
_THERE = "already exists"
"""In Lance's error if there is a table; the error has no class of its own."""
_TRIES = 10
"""Of a deletion, while other processes change the same fragments."""


class PassageIndex:
    """One version of an index, for reading and for small changes; `index.writer` writes many passages.

    `uri` is a folder (a `file:` URI is the path that it names) or the URI of an object store.
    """

    _fragments: list[Any] | None = None
    """Lance's fragments that are read; None: all."""
    _condition: str | None = None
    """Condition, in Lance's SQL, of the passages that are read."""

    def __init__(self, uri: str, dataset: Any, manifest: IndexManifest) -> None:
        self.uri = uri
        self.dataset = dataset
        self.manifest = manifest
        self._orders: dict[int, PassageOrder] = {}
        self._texts: dict[int, _Texts] = {}

    @classmethod
    def exists(cls, uri: str) -> bool:
        """Return whether there is an index; raises ValueError if it is damaged or access is refused."""
        uri = plain_place(uri)
        try:
            _dataset(uri)
        except (ValueError, OSError) as error:
            if (told := not_opened(uri, error)) is None:
                return False
            raise told from error
        return True

    @classmethod
    def create(cls, uri: str, manifest: IndexManifest) -> PassageIndex:
        """Create an empty index.

        Raises:
            ValueError: there is an index, or the folder or store cannot be written to.
        """
        uri, schema = plain_place(uri), table_schema(manifest)
        try:
            with commit_to(uri):
                lance.write_dataset(schema.empty_table(), table_uri(uri), schema=schema, mode="create")
        except OSError as error:
            if _THERE in str(error):
                raise ValueError(f"{uri} already holds an index") from error
            raise unreachable(uri, error) from error
        return cls.open(uri)

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> PassageIndex:
        """Open the latest or a given version.

        Raises:
            ValueError: there is no index or access is refused, the index is damaged, or another version of this
                project made it.
        """
        uri = plain_place(uri)
        try:
            dataset = _dataset(uri, version)
        except (ValueError, OSError) as error:
            if version is None and (told := not_opened(uri, error)) is not None:
                raise told from error
            if NOT_FOUND not in str(error):
                raise unreachable(uri, error) from error
            if version is not None and cls.exists(uri):
                raise ValueError(
                    f"{uri} keeps no version {version}: inspect_index.py lists them, in Python Index.versions()"
                ) from error
            raise ValueError(
                f"no index at {uri}: make one by encode_beir.py --index {uri} --collection …, in Python by Index.create"
            ) from error
        opened = cls(uri, dataset, manifest_in(dataset, uri))
        refuse_wrong_deletions(uri, dataset)
        return opened

    def clone(self, uri: str) -> PassageIndex:
        """Make an index at `uri` of this version, which reads the files of this index; raises ValueError."""
        uri = plain_place(uri)
        try:
            with commit_to(uri):
                self.dataset.shallow_clone(table_uri(uri), self.version)
        except OSError as error:
            raise unreachable(uri, error) from error
        return PassageIndex.open(uri)

    @property
    def version(self) -> int:
        """The version this object reads."""
        return int(self.dataset.version)

    def refresh(self) -> None:
        """Move to the latest version."""
        self.dataset = lance.dataset(table_uri(self.uri))
        self.manifest = manifest_in(self.dataset, self.uri)
        self._orders, self._texts = {}, {}

    def versions(self) -> Iterator[PassageIndex]:
        """Yield every version that is kept, oldest first."""
        for version in self.dataset.versions():
            yield PassageIndex.open(self.uri, version["version"])

    def __len__(self) -> int:
        with readable(self.uri, self.fragments):
            return int(self.dataset.count_rows())

    def batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream `columns` of all passages in table order; memory is bounded by a few batches."""
        yield from self._scan(columns, batch_size, self.dataset.scanner, fragments=self._fragments)

    def addressed_batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream as `batches` does, with `_rowaddr`: uint64, the fragment and the row of each passage."""
        scanner = self.dataset.scanner
        yield from self._scan(columns, batch_size, scanner, fragments=self._fragments, with_row_address=True)

    @property
    def order(self) -> PassageOrder:
        """The order of this version's passages by id, computed at first use."""
        version = self.version
        found = self._orders.get(version)
        if found is None:
            rows = self.addressed_batches(["id"], ROWS_AT_ONCE)
            made = PassageOrder.of(self.dataset.get_fragments(), self.fragments(), rows)
            # Two threads must use the same object: numbers of different orders do not mix.
            found = self._orders.setdefault(version, made)
        return found

    def fragments(self) -> list[Any]:
        """Return the Lance fragments in table order."""
        return list(self.dataset.get_fragments() if self._fragments is None else self._fragments)

    def fragment_batches(self, fragment: Any, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream columns of one fragment's live rows, with `_rowaddr` (uint64; the low half is the row written)."""
        yield from self._scan(columns, batch_size, fragment.scanner, with_row_address=True)

    def _scan(
        self, columns: Sequence[str], batch_size: int, scanner: Callable[..., Any], **options: Any
    ) -> Iterator[pa.RecordBatch]:
        # Lance reads all fragments for an empty list.
        if self._fragments == []:
            return
        stored = self.manifest.stored_columns(columns)
        with readable(self.uri, self.fragments):
            scan = scanner(columns=stored, filter=self._condition, batch_size=batch_size, **options)
            for batch in scan.to_batches():
                yield self._decoded(batch, columns)

    def _decoded(self, rows: T, columns: Sequence[str]) -> T:
        """Return stored rows with the requested columns; vectors are decoded if only codes are stored."""
        return with_vectors(self.uri, self.manifest, rows, columns) if self.manifest.decodes else rows

    def pinned(self) -> Self:
        """Return this version as an object that `refresh` does not change."""
        found = copy(self)
        found.dataset = self.dataset.checkout_version(self.version)
        return found

    def take(self, rows: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return `columns` of the passages in `rows` (int64) of this version, in their order."""
        with readable(self.uri, self.fragments):
            taken = self.dataset.take(rows.tolist(), columns=self.manifest.stored_columns(columns))
        return self._decoded(taken, columns)

    def vectors_of(self, numbers_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of passages by their numbers (int32 [C]): float16 [N, H], and offsets, int64 [C + 1]."""
        rows_P = self.order.passages.rows_P
        assert rows_P is not None, "an index has its passages in rows"
        return read_vectors(self.take(rows_P[numbers_C], ["reps"]))

    def shown(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Return `title`, `text`, `collection` and `metadata` of the passages in `rows` (int64).

        Metadata are the values of all its columns by name, None if a passage has none. A small collection stays in
        memory after some calls.
        """
        columns = [*_SHOWN, *self.manifest.metadata]
        texts = self._texts.setdefault(self.version, _Texts())
        if texts.table is not None:
            return [self._with_metadata(row) for row in texts.table.take(rows).to_pylist()]
        taken, passages = self.take(rows, columns), self.dataset.count_rows()
        texts.rows_read += len(taken)
        if texts.rows_read > _PAYS * passages and passages * taken.nbytes <= _HELD_BYTES * len(taken):
            # If a file is damaged, passages of other files are still read one by one.
            with suppress(ValueError), readable(self.uri, self.fragments):
                texts.table = self.dataset.to_table(columns).combine_chunks()
        return [self._with_metadata(row) for row in taken.to_pylist()]

    def _with_metadata(self, row: dict[str, Any]) -> dict[str, Any]:
        metadata = {name: row.pop(name) for name in self.manifest.metadata}
        return {**row, "metadata": metadata}

    def representations(self, rows: np.ndarray) -> Representations:
        """Return the stored representations of the passages in `rows` (int64), in their order."""
        assert self.manifest.hidden_size is not None, "an index with an encoder has vectors"
        columns = [field.name for field in representation_fields(self.manifest.hidden_size)]
        return Representations.from_arrow(self.take(rows, columns))

    def keys(self) -> KeySet:
        """Return the keys of all passages."""
        keys = np.zeros(len(self), KEY)
        start = 0
        for batch in self.batches(["id", "digest"], ROWS_AT_ONCE):
            found = keys_of(batch.column("id").to_pylist(), batch.column("digest").to_pylist())
            keys[start : start + len(found)] = found
            start += len(found)
        return KeySet(keys)

    def passages(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return id → what `shown` returns of the passage; unknown ids are left out."""
        found: dict[str, dict[str, Any]] = {}
        columns = ["id", *_SHOWN, *self.manifest.metadata]
        for start in range(0, len(ids), _IDS_PER_LOOKUP):
            condition = ids_filter(ids[start : start + _IDS_PER_LOOKUP])
            with readable(self.uri, self.fragments):
                rows = self.dataset.to_table(columns, filter=condition).to_pylist()
            found.update({row.pop("id"): self._with_metadata(row) for row in rows})
        return found

    def delete(self, ids: Iterable[str]) -> int:
        """Delete passages by id in one commit and return their number.

        Raises:
            ValueError: other processes kept changing these passages; nothing was deleted.
        """
        wanted = list(ids)
        for _ in range(_TRIES - 1):
            with suppress(ChangedError):
                return self._delete(wanted)
        return self._delete(wanted)

    def _delete(self, ids: Sequence[str]) -> int:
        self.refresh()
        shrunk = self.without(ids)
        # Without such passages there is no new version.
        if not shrunk:
            return 0
        rest = [part for part in shrunk.values() if part is not None]
        live = sum(self.dataset.get_fragment(number).metadata.num_rows for number in shrunk)
        gone = [number for number, part in shrunk.items() if part is None]
        operation = lance.LanceOperation.Delete(rest, gone, ids_filter(ids))
        with commit_to(self.uri, deletion_files(rest)):
            lance.LanceDataset.commit(self.dataset, operation, read_version=self.version)
        self.refresh()
        return live - sum(part.num_rows for part in rest)

    def without(self, ids: Sequence[str]) -> dict[int, FragmentMetadata | None]:
        """Return the fragments of these passages, by number, as they are without them; None if nothing is left.

        The files of deleted rows are written, with checksums; a commit makes them visible.
        """
        if not ids:
            return {}
        found = self.dataset.scanner(columns=["id"], filter=ids_filter(ids), with_row_address=True).to_table()
        by_fragment: dict[int, list[str]] = defaultdict(list)
        for passage_id, address in zip(found["id"].to_pylist(), found["_rowaddr"].to_pylist(), strict=True):
            by_fragment[address >> 32].append(passage_id)
        shrunk = {n: self.dataset.get_fragment(n).delete(ids_filter(gone)) for n, gone in by_fragment.items()}
        files = deletion_files(part for part in shrunk.values() if part is not None)
        note_deletions(self.uri, files)
        return shrunk

    def commit_compaction(self, results: Sequence[str]) -> None:
        """Replace fragments by the joined ones of `compaction.execute`, in one commit.

        Raises:
            ValueError: another process changed the index or the fragments; the commit is not made.
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
        """Move to the latest version, and forget versions older than `older_than`, with their files.

        The version before the latest stays, unless `older_than` is 0: after a jump of the clock it only seems old.
        Readers of a forgotten version must open the index again. Uncommitted files of killed jobs are removed after
        seven days.
        """
        self.refresh()
        self.dataset.cleanup_old_versions(older_than=older_than, retain_versions=2 if older_than else None)
        forget_deletions(self.uri)

    @classmethod
    def restore(cls, uri: str, version: int) -> PassageIndex:
        """Commit an older version again as the latest; versions after it stay until they are forgotten.

        In a folder, the newest manifests that cannot be read are renamed first.

        Raises:
            ValueError: the version is not kept, or another process changed the index meanwhile.
        """
        older = cls.open(uri, version)
        set_aside_unreadable(table_uri(older.uri))
        with commit_to(older.uri):
            older.dataset.restore()
        return cls.open(uri)

    def wrong_deletions(self) -> tuple[list[str], int]:
        """Return which files of deleted rows have changed, and the number of files without a checksum."""
        return wrong_deletions(self.uri, self.dataset)

    def count_collections(self) -> dict[str, int]:
        """Return the number of passages of each collection, by name; this reads a column of the table."""
        counts: Counter[str] = Counter()
        for batch in self.batches(["collection"], ROWS_AT_ONCE):
            counts.update(batch.column("collection").to_pylist())
        return dict(sorted(counts.items()))

    def contents(self) -> IndexContents:
        """Count passages, fragments and bytes of this version."""
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
    """Texts and metadata of a version's passages."""

    rows_read: int = 0
    table: pa.Table | None = None
    """Of all passages, in the order of the table."""


def _dataset(uri: str, version: int | None = None) -> Any:
    with without_panics():
        dataset = lance.dataset(table_uri(uri), version=version)
        # Lance parses the schema here.
        _ = dataset.schema
        return dataset


def rows_written(addresses: np.ndarray) -> np.ndarray:
    """Return uint32: each passage's row, among those that its fragment was written with, from `_rowaddr`."""
    return (addresses & 0xFFFFFFFF).astype(np.uint32)


def fragment_key(fragment: Any) -> str:
    """Return a name of a fragment's rows, which deletions and added columns do not change."""
    return PurePosixPath(fragment.data_files()[0].path).stem


def ids_filter(ids: Iterable[str]) -> str:
    """Return the SQL condition that selects passages by id; quotes in ids are escaped."""
    quoted = ", ".join("'" + passage_id.replace("'", "''") + "'" for passage_id in ids)
    return f"id IN ({quoted})"
