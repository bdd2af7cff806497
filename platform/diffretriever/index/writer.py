"""Exactly-once bulk writing: workers write uncommitted fragments, and one committer publishes them.

A `BlockWriter` writes data files and returns a small receipt. The `Committer` adds receipts to the table atomically: a
block's rows appear, and the rows that they replace disappear, in one commit. A lost receipt leaves only uncommitted
files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from diffretriever.collections import Passage
from diffretriever.index.commits import changed_by_another, commit_to, data_files, fragments_in, receipt_of, table_uri
from diffretriever.index.damage import as_stored, deletion_files, refuse_to_write, unreachable
from diffretriever.index.lease import Lease
from diffretriever.index.manifest import manifest_in
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import with_packed
from diffretriever.schemas.index import TEXT_SCHEMA, IndexManifest, metadata_fields
from diffretriever.schemas.locations import parse_location, plain_location
from diffretriever.schemas.metadata import Columns

T = TypeVar("T", pa.Table, pa.RecordBatch)

APPENDED, REPLACED = "appended", "replaced"
"""Commit messages."""
# Lance tries at least once; an overwrite without retries applies only to the version that it read.
_NO_RETRY, _RETRIES = 0, 20


def write_block(uri: str, table: pa.Table) -> str:
    """Write one block; for many blocks, use one `BlockWriter`."""
    return BlockWriter(uri).write(table)


class BlockWriter:
    """Writes blocks of passages as uncommitted fragments.

    It reads the schema and the codec once. If another job replaces the table's columns meanwhile, the commit is
    rejected.
    """

    def __init__(self, uri: str) -> None:
        self._uri = plain_location(uri)
        self._dataset = lance.dataset(table_uri(self._uri))
        self._manifest = manifest_in(self._dataset, uri)

    @property
    def text_columns(self) -> list[str]:
        """Columns of a block besides its representations."""
        return self._manifest.text_columns

    def write(self, table: pa.Table) -> str:
        """Write one block; return the receipt, about 400 bytes of JSON.

        A compressed index stores the encoded column `reps`, with or without the original.

        Raises:
            ValueError: vectors or term weights contain NaN or infinity, or the index is not writable.
        """
        refuse_to_write(table)
        schema = self._dataset.schema
        table = stored_rows(self._uri, self._manifest, table, schema)
        try:
            fragments = write_fragments(table, self._dataset, schema=schema)
        except OSError as error:
            raise unreachable(self._uri, error) from error
        return receipt_of(fragments)


def stored_rows(uri: str, manifest: IndexManifest, rows: T, schema: pa.Schema) -> T:
    """Return rows as a table of this schema stores them: encoded, with checksums. An index of vectors needs `reps`."""
    return as_stored(rows if manifest.codec is None else with_packed(uri, manifest, rows), schema)


def text_table(
    passages: Sequence[Passage], collection: str | Sequence[str], metadata: Columns | None = None
) -> pa.Table:
    """Return passages as `TEXT_SCHEMA` plus `metadata` columns; `collection` is one name, or one per passage."""
    columns = [
        [p.id for p in passages],
        [collection] * len(passages) if isinstance(collection, str) else collection,
        [p.title for p in passages],
        [p.text for p in passages],
        [p.digest for p in passages],
        *([p.metadata.get(name) for p in passages] for name in metadata or {}),
    ]
    schema = pa.schema([*TEXT_SCHEMA, *metadata_fields(metadata or {})])
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def join_columns(left: pa.Table, right: pa.Table) -> pa.Table:
    """Return one table with the columns of both."""
    return pa.Table.from_arrays([*left.columns, *right.columns], schema=pa.schema([*left.schema, *right.schema]))


class WriterLock:
    """A lock that allows one writing job per index.

    In a folder it is a file lock, which ends with the process. On an object store it is a lease, which expires half a
    minute after a crash; see `index.lease`. Commits are safe without it; see `Committer`.
    """

    def __init__(self, uri: str, *, patient: bool = True) -> None:
        """Prepare the lock; a patient one waits until another job's lease in a store is renewed or expires."""
        self._location, self._patient = parse_location(uri), patient
        self._file: IO[str] | None = None
        self._lease: Lease | None = None

    def __enter__(self) -> WriterLock:
        """Take the lock; raise ValueError if another job has it."""
        if isinstance(self._location, Path):
            self._file = _locked(self._location)
            return self
        self._lease = Lease(self._location)
        self._lease.acquire(patient=self._patient)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._lease is not None:
            self._lease.release()


def _locked(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".writer.lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise ValueError(
            f"another job (process {owner}) is writing to {folder}: wait for it, or stop it; "
            "the same command then resumes its work"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


class Committer:
    """Publishes written blocks. Take the `WriterLock` first: a concurrent second commit is rejected.

    Of two commits to the same version one wins, even without the lock. Lance alone would rebase the second if they
    share no fragment, as two appends, and duplicate rows that both wrote. So a commit names all fragments of its
    version as updated, which makes Lance reject it after any other commit. A table without fragments is overwritten
    without retry, which Lance applies only to that version. The manifest write decides: a crash needs no repair.
    """

    def __init__(self, index: PassageIndex) -> None:
        self._index = index
        self._committed: set[str] = set()

    def commit(self, receipts: dict[str, str], replaced_ids: list[str]) -> None:
        """Commit blocks by task key, and delete the rows that they replace, in one commit.

        Each task key is committed once, even if Ray delivers its block twice.

        Raises:
            ValueError: another process has committed to this index; the blocks are not published.
        """
        new = {key: receipt for key, receipt in receipts.items() if key not in self._committed}
        if not new:
            return
        latest = lance.dataset(table_uri(self._index.uri))
        if latest.version != self._index.version:
            raise changed_by_another(self._index.uri)
        written = fragments_in(new.values())
        # Listing many fragments is slow, so do it once.
        fragments = self._index.fragments()
        shrunk = self._index.without(replaced_ids) if fragments else {}
        rest = [part for part in shrunk.values() if part is not None]
        files = data_files(written) | deletion_files(rest)
        with commit_to(self._index.uri, files):
            self._index.dataset = lance.LanceDataset.commit(
                latest,
                self._operation(fragments, written, shrunk),
                read_version=self._index.version,
                max_retries=_RETRIES if fragments else _NO_RETRY,
                commit_message=REPLACED if replaced_ids else APPENDED,
            )
        self._committed |= new.keys()

    def _operation(
        self, fragments: list[Any], new: list[FragmentMetadata], shrunk: dict[int, FragmentMetadata | None]
    ) -> lance.LanceOperation.Update | lance.LanceOperation.Overwrite:
        if not fragments:
            return lance.LanceOperation.Overwrite(self._index.dataset.schema, new)
        rest = {part.fragment_id: shrunk.get(part.fragment_id, part.metadata) for part in fragments}
        return lance.LanceOperation.Update(
            removed_fragment_ids=[number for number, part in rest.items() if part is None],
            updated_fragments=[part for part in rest.values() if part is not None],
            new_fragments=new,
        )
