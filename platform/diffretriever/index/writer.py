"""Exactly-once bulk writing: workers write fragments that nobody sees, one committer makes them visible.

A worker's `BlockWriter` leaves data files and returns a small receipt. The committer adds receipts to the table in
single atomic commits: rows of a block appear together with the removal of the rows they replace, or not at all. A
receipt that never reaches the committer leaves only files that no version owns.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from diffretriever.collections import Passage
from diffretriever.index.commits import changed_by_another, commit_to, data_files
from diffretriever.index.damage import as_stored, deletion_files, refuse_to_write, unreachable
from diffretriever.index.lease import Lease
from diffretriever.index.manifest import manifest_in
from diffretriever.index.table import PassageIndex, table_uri
from diffretriever.index.vectors import with_packed
from diffretriever.schemas.index import TEXT_SCHEMA, IndexManifest, metadata_fields
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.places import as_place

T = TypeVar("T", pa.Table, pa.RecordBatch)

APPENDED, REPLACED = "appended", "replaced"
"""What a commit's message says it did."""
# Lance tries once at the least; an overwrite with 0 is tied to the version it was made for.
_NO_RETRY, _RETRIES = 0, 20


def write_block(uri: str, table: pa.Table) -> str:
    """Write one block as `BlockWriter` does; whoever writes many makes such a writer once."""
    return BlockWriter(uri).write(table)


class BlockWriter:
    """Writes blocks of passages as uncommitted fragments of an index.

    What a block must agree with (columns, their numbers, the data files' format, the codec) is read when the writer is
    made: writing a block reads nothing of the table, however many fragments that has. Should another job replace the
    table's columns meanwhile, the commit is refused.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._dataset = lance.dataset(table_uri(uri))
        self._manifest = manifest_in(self._dataset, uri)

    @property
    def text_columns(self) -> list[str]:
        """The columns of a block beside those of its representations."""
        return self._manifest.text_columns

    def write(self, table: pa.Table) -> str:
        """Write one block; return the receipt, a JSON text of about 400 bytes.

        The block has `reps`; in a compressed index their codes are written with them or in their place.

        Raises:
            ValueError: a passage's vectors or impact weights hold NaN or infinity, and nothing is written; or the index
                cannot be written to, with the reason.
        """
        refuse_to_write(table)
        schema = self._dataset.schema
        table = stored_rows(self._uri, self._manifest, table, schema)
        try:
            fragments = write_fragments(table, self._dataset, schema=schema)
        except OSError as error:
            raise unreachable(self._uri, error) from error
        return json.dumps([fragment.to_json() for fragment in fragments])


def stored_rows(uri: str, manifest: IndexManifest, rows: T, schema: pa.Schema) -> T:
    """Return rows as a table stores them: vectors packed where it has a codec, and checksums.

    Args:
        uri: of the index.
        manifest: of the table.
        rows: with `reps`, where the index has vectors.
        schema: of the table.
    """
    return as_stored(rows if manifest.codec is None else with_packed(uri, manifest, rows), schema)


def text_table(
    passages: Sequence[Passage], collection: str | Sequence[str], metadata: Columns | None = None
) -> pa.Table:
    """Return the passages, of one collection or each of its own, with their digests, as `TEXT_SCHEMA`.

    The columns `metadata` follow; None: none.
    """
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


def beside(left: pa.Table, right: pa.Table) -> pa.Table:
    """Return one table with the columns of both."""
    return pa.Table.from_arrays([*left.columns, *right.columns], schema=pa.schema([*left.schema, *right.schema]))


class WriterLock:
    """One writing job per index at a time.

    In a folder it is a lock of the operating system, which drops it when the job dies, however it dies. On an object
    store it is a lease, which a job that died keeps for half a minute; see `index.lease`. There the first commit wins
    all the same, and others are refused; see `Committer`.
    """

    def __init__(self, uri: str, *, patient: bool = True) -> None:
        """Lock nothing yet.

        Args:
            uri: folder or object-store URI.
            patient: on an object store, find out whether who took the lease is still at work; otherwise whoever has
                not given it back is.
        """
        self._place, self._patient = as_place(uri), patient
        self._file: IO[str] | None = None
        self._lease: Lease | None = None

    def __enter__(self) -> WriterLock:
        """Take it; raises `ValueError` where another writer has it."""
        if isinstance(self._place, Path):
            self._file = _locked(self._place)
            return self
        self._lease = Lease(self._place)
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
    """Return the open file of a folder's lock."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".writer.lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise ValueError(
            f"another job (process {owner}) is writing to {folder}: wait for its end, or stop it; "
            "the same command then resumes its work"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


class Committer:
    """Makes written blocks visible. Hold the `WriterLock`, or lose the work of a block to another writer.

    Of commits made to the same version one wins, with or without the lock, and the loser leaves nothing. Lance writes
    a version's manifest only where there is none, but lets a commit that lost follow the winner's where the two touch
    no fragment in common, as two appends never do: rows that both wrote would be there twice. So a commit here names
    every fragment of the version it was made for as updated, those that stay as they are too, and any other commit
    that replaces, deletes or compacts rows is a conflict that Lance refuses. A table without fragments has none to
    name; it is overwritten with no retry, which Lance does to that very version or not at all. The decision is the
    one write of the manifest: unlike a claim made before it or rows taken back after it, it leaves nothing to mend
    if the process dies. What may come in between is what changes no row that is here: a new vector index, settings,
    and rows that another program appends with Lance itself, which stay beside these.
    """

    def __init__(self, index: PassageIndex) -> None:
        self._index = index
        self._committed: set[str] = set()

    def commit(self, receipts: dict[str, str], replaced_ids: list[str]) -> None:
        """Commit blocks by task key, in one step with the removal of the rows that they replace.

        A task key that was committed before is ignored, so a block that Ray delivers twice appears once.

        Raises:
            ValueError: another process committed to this index in between; nothing of these blocks is visible then.
        """
        new = {key: receipt for key, receipt in receipts.items() if key not in self._committed}
        if not new:
            return
        latest = lance.dataset(table_uri(self._index.uri))
        if latest.version != self._index.version:
            raise changed_by_another(self._index.uri)
        written = [FragmentMetadata.from_json(json.dumps(item)) for text in new.values() for item in json.loads(text)]
        # Each look at them takes a good part of a commit where they are many.
        fragments = self._index.fragments()
        shrunk = self._index.without(replaced_ids) if fragments else {}
        rest = [part for part in shrunk.values() if part is not None]
        files = data_files(written) | deletion_files(rest)
        with commit_to(self._index.uri, table_uri(self._index.uri), files):
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
