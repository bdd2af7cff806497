"""Damage to an index: files of its table, rows and deletions that are not what was written, numbers that are none.

A version of a table is a manifest in `_versions`, named by its number or by what is left of 2^64 - 1 above it. Lance
opens the newest that is there; beside them it notes the number of the newest it has written. What is wrong with a table
that it does not open, or opens at a version before the last, is told from the files.

A row's checksum is written with it, and a changed bit in a data file is found by it. It covers all columns but title
and text, which the column `digest` covers; a compressed row's is of what is stored.

A changed bit in a file of deleted rows hides a passage and brings another back, and nothing else would tell. A commit
that deletes rows is preceded by a file of checksums beside the table.

Rows with NaN or infinity are refused before they are written, and wherever they are met in an index that has them.

Legend: P rows, C columns.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileReader

from diffretriever.files import file_state, files_in, is_local, json_digest, read_bytes, read_model, remove, write_text
from diffretriever.representations import offsets_of, rows_not_finite
from diffretriever.schemas.base import shortened
from diffretriever.schemas.index import ROW_CHECKSUM, DeletionChecksums

T = TypeVar("T", pa.Table, pa.RecordBatch)

_LOG = logging.getLogger(__name__)

NOT_FOUND = "was not found"
"""In the error of Lance where there is no table, which has no class of its own for it."""
_MOST = 2**64 - 1
_NAMED = 5
"""Passages that a message names."""
_OPENED: set[tuple[str, str]] = set()
"""Data files that this process has opened: place and state."""
HINT = "latest_version_hint.json"
"""File beside the manifests."""
_SUFFIX = ".manifest"
_LEFT_OUT = ("title", "text", ROW_CHECKSUM)
_FOLDER = "deletions"
_SEEN: set[tuple[str, str, str]] = set()
"""Files of deleted rows that this process has found to be as they were written: place, digest, state."""
_FIX = "make sure by `inspect_index.py --verify` that nothing else is damaged, then remove it"


def manifests_of(table: str) -> dict[int, str]:
    """Return version → file name of each manifest of the Lance table at a path or URI."""
    found: dict[int, str] = {}
    for file in files_in(f"{table}/_versions"):
        name = PurePosixPath(file.path)
        if name.suffix == _SUFFIX and name.stem.isdigit():
            number = int(name.stem)
            found[_MOST - number if number > _MOST // 2 else number] = name.name
    return found


def lost_version(table: str, newest: int) -> int | None:
    """Return the last version that was committed where that is above `newest`, the last that can be opened."""
    try:
        noted = int(json.loads(read_bytes(f"{table}/_versions/{HINT}"))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # The loss of the note loses nothing.
        return None
    return noted if noted > newest else None


def wrong_data_files(table: str, fragments: Iterable[Any]) -> list[str]:
    """Return which data files of a table's fragments are missing, or of another size than was written, and how."""
    sizes = {PurePosixPath(file.path).name: file.size for file in files_in(f"{table}/data")}
    wrong: list[str] = []
    for file in (file for fragment in fragments for file in fragment.data_files()):
        size, written = sizes.get(PurePosixPath(file.path).name), file.file_size_bytes
        if size is None:
            wrong.append(f"data/{file.path} is missing")
        elif written and size != written:
            wrong.append(f"data/{file.path} has {size:,} bytes, and {written:,} were written")
    return wrong


def open_data_files(uri: str, table: str, fragments: Iterable[Any]) -> None:
    """Have Lance open each data file of a table on this machine by itself, once in a process.

    Where a stream of rows is the first to meet some damaged bytes, the error ends the process: its text has a zero in
    it, which Arrow's C interface cannot carry.

    Args:
        uri: of the index.
        table: path of its Lance table.
        fragments: those that are to be read.

    Raises:
        OSError: Lance cannot open one.
    """
    if not is_local(uri):
        return
    for file in (file for fragment in fragments for file in fragment.data_files()):
        place = f"{table}/data/{file.path}"
        # That one is missing is for Lance to say: a clone's files lie elsewhere.
        with suppress(FileNotFoundError):
            state = place, file_state(place)
            if state not in _OPENED:
                LanceFileReader(place).metadata()
                _OPENED.add(state)


@contextmanager
def without_panics() -> Iterator[None]:
    """Raise OSError where Lance panics, as it does over some damaged bytes: its own error is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"Lance gave up: {error}") from error


@contextmanager
def readable(uri: str, table: str, fragments: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """Run what reads a table on this machine; raises ValueError, with what is damaged, where Lance cannot.

    What reads from an object store may fail for other reasons, which are told as they are.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        fragments: gives those that are read.
    """
    try:
        with without_panics():
            yield
    except (OSError, RuntimeError, KeyError, pa.ArrowException) as error:
        if not is_local(uri):
            raise
        wrong = "; ".join(wrong_data_files(table, fragments())) or reason_of(error)
        raise ValueError(
            f"the table of {uri} is damaged: {wrong}. Restore {table} from a copy, or make the index again"
        ) from error


def not_opened(uri: str, table: str, error: Exception) -> ValueError | None:
    """Return what to tell where Lance opens no table: it is damaged, or out of reach; None if there is none.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        error: Lance's.
    """
    is_absent = NOT_FOUND in str(error)
    if is_absent or is_local(uri):
        try:
            damaged = _damaged_table(uri, table, reason_of(error))
        except (ValueError, OSError):
            damaged = None
        if damaged is not None:
            return damaged
    return None if is_absent else unreachable(uri, error)


def unreachable(uri: str, error: Exception) -> ValueError:
    """Return the error of a place that Lance can neither read nor write, with Lance's reason."""
    return ValueError(f"cannot reach the index at {uri}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Return what Lance says."""
    # What follows the last comma is a line of Lance's own source.
    return str(error).rsplit(", /", 1)[0]


def _damaged_table(uri: str, table: str, reason: str) -> ValueError | None:
    """Return the error of a table of which there are files; None where there are none."""
    versions = manifests_of(table)
    if not versions and not files_in(f"{table}/data"):
        return None
    if not versions:
        return ValueError(
            f"the index at {uri} is damaged: {table}/data holds passages, and {table}/_versions no manifest that says "
            "what they are: restore that folder from a copy, or remove the index and make it again"
        )
    newest, *older = sorted(versions, reverse=True)
    last = next((version for version in older if _opens(table, version)), None)
    back = (
        "remove the index and make it again"
        if last is None
        else f"go back by maintain_index.py --index {uri} --restore {last}, and run the jobs since then again"
    )
    return ValueError(
        f"the index at {uri} is damaged: version {newest} cannot be opened ({reason}). Restore "
        f"{table}/_versions/{versions[newest]} from a copy, or {back}"
    )


def set_aside_unreadable(table: str) -> None:
    """Rename, in a folder, the newest manifests that Lance cannot open, so that it goes on from the one before them.

    Raises:
        OSError: one cannot be read at all, whatever it holds, or not be renamed.
    """
    if not is_local(table):
        return
    for version, name in sorted(manifests_of(table).items(), reverse=True):
        file = Path(table) / "_versions" / name
        file.read_bytes()
        if _opens(table, version):
            return
        aside = file.rename(f"{file}.unreadable")
        _LOG.warning("version %d cannot be opened: its manifest is now %s", version, aside)


def _opens(table: str, version: int) -> bool:
    with suppress(ValueError, OSError), without_panics():
        lance.dataset(table, version=version)
        return True
    return False


def as_stored(rows: T, schema: pa.Schema) -> T:
    """Return rows with the columns of a table's schema, checksums included."""
    others = pa.schema([field for field in schema if field.name != ROW_CHECKSUM])
    cast = rows.select(others.names).cast(others)
    sums = pa.array(row_checksums(cast, others.names))
    columns = [sums if field.name == ROW_CHECKSUM else cast.column(field.name) for field in schema]
    made: T = type(rows).from_arrays(columns, schema=schema)
    return made


def row_checksums(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> np.ndarray:
    """Return uint32 [P]: CRC-32 of each row's values, and how many bytes each has, in the columns `names`."""
    columns = [_bytes_of(rows.column(name)) for name in sorted(set(names) - set(_LEFT_OUT))]
    lengths_PC = np.ascontiguousarray(np.stack([np.diff(offsets) for _, offsets in columns], axis=1))
    sums = [zlib.crc32(row) for row in lengths_PC.view(np.uint8)]
    for data, offsets in columns:
        spans = pairwise(offsets.tolist())
        sums = [zlib.crc32(data[start:stop], value) for value, (start, stop) in zip(sums, spans, strict=True)]
    return np.array(sums, np.uint32)


def _bytes_of(column: pa.Array | pa.ChunkedArray) -> tuple[memoryview, np.ndarray]:
    """Return the bytes of a column's values, and where those of each row begin, int64 [P + 1]."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(column.type) or pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.large_binary())
        _, starts, data = column.buffers()
        offsets = np.frombuffer(starts, np.int64)[column.offset : column.offset + len(column) + 1]
        return memoryview(data if data is not None else b""), offsets
    counts_P, width = np.ones(len(column), np.int64), 1
    if column.null_count:
        counts_P, column = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), column.drop_null()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_list(column.type):
        counts_P = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        column = column.flatten()
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        column = column.flatten()
    values_N = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    return values_N.view(np.uint8).data, offsets_of(counts_P * width * values_N.itemsize)


def deletion_files(fragments: Iterable[Any]) -> set[str]:
    """Return the paths, within the table, of the files that say what is deleted of fragments, by their metadata."""
    return {part.deletion_file.path(part.id) for part in fragments if part.deletion_file is not None}


def note_deletions(uri: str, table: str, files: Iterable[str]) -> None:
    """Keep the checksums of files that a commit will name.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        files: their paths within the table.
    """
    sums = {name: _digest(f"{table}/{name}") for name in sorted(files)}
    if sums:
        _write(uri, sums)


def refuse_wrong_deletions(uri: str, table: str, fragments: Callable[[], Iterable[Any]]) -> None:
    """Look at the files of deleted rows of an index on this machine before Lance reads them.

    They are small, and a damaged one does more harm than any other file: rows vanish or come back, or Lance asks for so
    much memory that the process dies.

    Args:
        uri: of the index.
        table: path of its Lance table.
        fragments: gives the metadata of those to look at.

    Raises:
        ValueError: one is not as it was written; the message names it.
    """
    if not is_local(uri) or not files_in(f"{table}/_deletions"):
        return
    # What is wrong with a record is for `--verify` to say.
    sums = _noted(uri).sums
    known = [f"{table}/{name}" for name in sorted(deletion_files(fragments()) & sums.keys())]
    wrong = [place for place in known if not _is_as_written(place, sums[place.removeprefix(f"{table}/")])]
    if wrong:
        raise ValueError(
            f"the table of {uri} is damaged: {', '.join(wrong)} is not what was written, so that deleted passages "
            "would be back, or others missing: restore it from a copy, or make the index again"
        )


def _is_as_written(place: str, digest: str) -> bool:
    try:
        state = place, digest, file_state(place)
        if state not in _SEEN:
            if _digest(place) != digest:
                return False
            _SEEN.add(state)
    except FileNotFoundError:
        return False
    return True


def wrong_deletions(uri: str, table: str, fragments: Iterable[Any]) -> tuple[list[str], int]:
    """Return which files of deleted rows are not as they were written, and how many have no checksum.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        fragments: metadata of those to look at.
    """
    sums, _, wrong = _noted(uri)
    files = sorted(deletion_files(fragments))
    known = [name for name in files if name in sums]
    wrong += [f"{name} is not what was written" for name in known if _digest(f"{table}/{name}") != sums[name]]
    return wrong, len(files) - len(known)


def forget_deletions(uri: str, table: str) -> None:
    """Join the files of checksums; leave out those of files that are gone. A damaged one stays as it is."""
    sums, read, _ = _noted(uri)
    there = {f"_deletions/{file.base_name}" for file in files_in(f"{table}/_deletions")}
    kept = {name: sums[name] for name in sorted(sums.keys() & there)}
    if len(read) < 2 and kept == sums:
        return
    joined = _write(uri, kept) if kept else None
    for record in read:
        if record != joined:
            remove(record)


class _Noted(NamedTuple):
    """What the files of checksums of an index say."""

    sums: dict[str, str]
    read: list[str]
    """Files that can be used."""
    wrong: list[str]
    """What is wrong with the others."""


def _noted(uri: str) -> _Noted:
    noted = _Noted({}, [], [])
    for record in _records(uri):
        try:
            noted.sums.update(_read(record))
            noted.read.append(record)
        except ValueError as error:
            noted.wrong.append(str(error))
    return noted


def _records(uri: str) -> list[str]:
    folder = f"{uri.rstrip('/')}/{_FOLDER}"
    return [f"{folder}/{file.base_name}" for file in files_in(folder) if file.extension == "json"]


def _read(record: str) -> dict[str, str]:
    try:
        files = read_model(record, DeletionChecksums, _FIX).files
    except FileNotFoundError:
        # Another process has joined it with others since.
        return {}
    if f"{json_digest(files)}.json" != PurePosixPath(record).name:
        raise ValueError(f"{record} cannot be used: it is not what was written: {_FIX}")
    return files


def _write(uri: str, sums: dict[str, str]) -> str:
    place = f"{uri.rstrip('/')}/{_FOLDER}/{json_digest(sums)}.json"
    write_text(place, DeletionChecksums(files=sums).model_dump_json())
    return place


def _digest(place: str) -> str:
    return hashlib.sha256(read_bytes(place)).hexdigest()


class NotFiniteError(ValueError):
    """Passages of an index hold NaN or infinity; the message names them."""


def refuse_to_write(table: pa.Table) -> None:
    """Raise ValueError for rows (with `id` and `collection`) whose vectors or impact weights are not finite."""
    wrong = table.take(rows_not_finite(table))
    if len(wrong):
        ids, collections = wrong.column("id").to_pylist(), sorted(set(wrong.column("collection").to_pylist()))
        raise ValueError(
            f"{', '.join(collections)}: {named(ids)} would be stored with NaN or infinity, so none of its block is "
            "written: look for damaged weights, encode in float32, or leave such passages out"
        )


def refuse_rows(uri: str, rows: pa.Table | pa.RecordBatch) -> None:
    """Raise NotFiniteError if rows that are stored at `uri` (with `id`) have vectors or weights that are not finite."""
    wrong = rows_not_finite(rows)
    if len(wrong):
        raise stored_not_finite(uri, rows.column("id").take(pa.array(wrong)).to_pylist())


def finite_rows(uri: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on what is read of the index at `uri`; raises as `refuse_rows`."""
    for batch in batches:
        refuse_rows(uri, batch)
        yield batch


def stored_not_finite(uri: str, ids: Sequence[str]) -> NotFiniteError:
    """Return the error of whoever meets such passages in an index."""
    return NotFiniteError(
        f"{uri} holds NaN or infinity for {named(ids)}, and every ranking would be wrong: "
        f"`python jobs/inspect_index.py --index {uri} --verify` names all such passages; delete them with "
        "jobs/maintain_index.py, and encode the collection again to add them"
    )


def named(ids: Sequence[str]) -> str:
    """Return the first few passages in words, and how many more there are."""
    first = ", ".join(f"'{shortened(passage_id)}'" for passage_id in ids[:_NAMED])
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{'passage' if len(ids) == 1 else 'passages'} {first}{more}"
