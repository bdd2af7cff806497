"""Integrity of an index: checksums of rows and deletion files, and errors that name the damage.

Derived files have their own checksums (`index.derived`). Commits are durable (`index.commits`), and one job at a time
writes (`index.writer.WriterLock`). Lance has no checksums, so the index adds them:

- Rows: a column has the CRC-32 of each row's other columns; the column `digest` covers title and text. `--verify`
  compares them.
- Deletion files, where damage hides passages or brings them back: their SHA-256 is stored before a commit names them,
  in the name of an empty file in the folder `deletions`. Opening a local index compares them.

Writers reject NaN and infinity; readers of vectors and weights report passages with such values.

Legend: P rows, C columns.
"""

from __future__ import annotations

import json
import logging
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.core.files import file_digest, file_state, files_in, is_local, read_bytes, remove, write_bytes
from diffretriever.index.commits import table_uri
from diffretriever.schemas.base import shortened
from diffretriever.schemas.index import ROW_CHECKSUM
from diffretriever.vectors.representations import offsets_of, rows_not_finite

T = TypeVar("T", pa.Table, pa.RecordBatch)

_LOG = logging.getLogger(__name__)

NOT_FOUND = "was not found"
"""Text of Lance's error for a missing table, which has no class of its own."""
_MOST = 2**64 - 1
_MAX_NAMED = 5
"""Number of passages named in a message."""
_SUFFIX = ".manifest"
_NOT_IN_CHECKSUM = ("title", "text", ROW_CHECKSUM)


def manifests_of(table: str) -> dict[int, str]:
    """Return the manifests of the Lance table at a path or URI: version → file name."""
    manifests: dict[int, str] = {}
    for file in files_in(f"{table}/_versions"):
        name = PurePosixPath(file.path)
        if name.suffix == _SUFFIX and name.stem.isdigit():
            # Newer tables name a manifest 2^64 - 1 minus its version.
            number = int(name.stem)
            manifests[_MOST - number if number > _MOST // 2 else number] = name.name
    return manifests


def lost_version(table: str, newest: int) -> int | None:
    """Return the last committed version by Lance's hint file, if it is above `newest`, the last with a manifest."""
    try:
        hint = int(json.loads(read_bytes(f"{table}/_versions/latest_version_hint.json"))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # The hint is optional.
        return None
    return hint if hint > newest else None


def wrong_data_files(table: str, fragments: Iterable[Any]) -> list[str]:
    """Describe each data file of some fragments that is missing or has the wrong size."""
    sizes = {PurePosixPath(file.path).name: file.size for file in files_in(f"{table}/data")}
    wrong: list[str] = []
    for file in (file for fragment in fragments for file in fragment.data_files()):
        size, written = sizes.get(PurePosixPath(file.path).name), file.file_size_bytes
        if size is None:
            wrong.append(f"data/{file.path} is missing")
        elif written and size != written:
            wrong.append(f"data/{file.path} has {size:,} bytes instead of {written:,}")
    return wrong


@contextmanager
def without_panics() -> Iterator[None]:
    """Raise OSError if Lance panics over damaged bytes: its own error is not an `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"Lance panicked: {error}") from error


def open_dataset(uri: str, version: int | None = None) -> Any:
    """Open the Lance table of the index at `uri`; raises Lance's errors, and OSError for damaged bytes."""
    with without_panics():
        dataset = lance.dataset(table_uri(uri), version=version)
        # Lance parses the schema here.
        _ = dataset.schema
        return dataset


@contextmanager
def readable(uri: str, fragments: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """Run code that reads fragments; if Lance fails, raise ValueError that names the damaged files.

    Errors of an object store have other causes and pass through.
    """
    try:
        with without_panics():
            yield
    except (OSError, RuntimeError, KeyError, pa.ArrowException) as error:
        if not is_local(uri):
            raise
        wrong = "; ".join(wrong_data_files(table_uri(uri), fragments())) or _reason_of(error)
        raise ValueError(
            f"the table of {uri} is damaged: {wrong}. Restore {table_uri(uri)} from a copy, or rebuild the index"
        ) from error


def not_opened(uri: str, error: Exception) -> ValueError | None:
    """Return the error to raise if Lance cannot open a table; None if there is no table."""
    is_absent = NOT_FOUND in str(error)
    damaged = None
    if is_absent or is_local(uri):
        with suppress(ValueError, OSError):
            damaged = _damaged_table(uri, _reason_of(error))
    return damaged or (None if is_absent else unreachable(uri, error))


def unreachable(uri: str, error: Exception) -> ValueError:
    """Return the error for a path or URI that Lance cannot access, with Lance's reason."""
    return ValueError(f"cannot reach the index at {uri}: {_reason_of(error)}")


def _reason_of(error: Exception) -> str:
    # Lance appends its source location after the last comma.
    return str(error).rsplit(", /", 1)[0]


def _damaged_table(uri: str, reason: str) -> ValueError | None:
    table = table_uri(uri)
    versions = manifests_of(table)
    if not versions and not files_in(f"{table}/data"):
        return None
    if not versions:
        return ValueError(
            f"the index at {uri} is damaged: {table}/data has passages, but {table}/_versions has no manifest: "
            "restore that folder from a copy, or remove the index and rebuild it"
        )
    newest, *older = sorted(versions, reverse=True)
    if _opens(uri, newest):
        # Another process has just created it.
        return None
    last = next((version for version in older if _opens(uri, version)), None)
    fallback = (
        "remove the index and rebuild it"
        if last is None
        else f"go back with maintain_index.py --index {uri} --restore {last}, and rerun the jobs since then"
    )
    return ValueError(
        f"the index at {uri} is damaged: version {newest} cannot be opened ({reason}). Restore "
        f"{table}/_versions/{versions[newest]} from a copy, or {fallback}"
    )


def set_aside_unreadable(uri: str) -> None:
    """Rename the newest manifests that Lance cannot open, so that an older version is the latest.

    Local folders only.
    """
    if not is_local(uri):
        return
    table = table_uri(uri)
    for version, name in sorted(manifests_of(table).items(), reverse=True):
        file = Path(table) / "_versions" / name
        file.read_bytes()
        if _opens(uri, version):
            return
        aside = file.rename(f"{file}.unreadable")
        # The next commit gets the same version number.
        shutil.rmtree(f"{uri}/bm25/version-{version}", ignore_errors=True)
        _LOG.warning("version %d cannot be opened: its manifest was renamed to %s", version, aside)


def _opens(uri: str, version: int) -> bool:
    with suppress(ValueError, OSError):
        open_dataset(uri, version)
        return True
    return False


def as_stored(rows: T, schema: pa.Schema) -> T:
    """Return rows with the columns of a table's schema, including checksums."""
    content_schema = pa.schema([field for field in schema if field.name != ROW_CHECKSUM])
    cast = rows.select(content_schema.names).cast(content_schema)
    sums = pa.array(row_checksums(cast, content_schema.names))
    columns = [sums if field.name == ROW_CHECKSUM else cast.column(field.name) for field in schema]
    stored: T = type(rows).from_arrays(columns, schema=schema)
    return stored


def row_checksums(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> np.ndarray:
    """Return uint32 [P]: CRC-32 of the byte lengths and values of each row in the columns `names`."""
    columns = [_bytes_of(rows.column(name)) for name in sorted(set(names) - set(_NOT_IN_CHECKSUM))]
    lengths_PC = np.ascontiguousarray(np.stack([np.diff(offsets) for _, offsets in columns], axis=1))
    sums = [zlib.crc32(row) for row in lengths_PC.view(np.uint8)]
    for data, offsets in columns:
        spans = pairwise(offsets.tolist())
        sums = [zlib.crc32(data[start:stop], value) for value, (start, stop) in zip(sums, spans, strict=True)]
    return np.array(sums, np.uint32)


def _bytes_of(column: pa.Array | pa.ChunkedArray) -> tuple[memoryview, np.ndarray]:
    """Return the bytes of a column's values, and the start of each row, int64 [P + 1]."""
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
    """Return the paths, within the table, of the deletion files of fragments."""
    return {part.deletion_file.path(part.id) for part in fragments if part.deletion_file is not None}


def write_deletion_checksums(uri: str, files: Iterable[str]) -> None:
    """Write the checksums of deletion files (paths within the table), before a commit names the files."""
    for file in files:
        write_bytes(f"{_checksum_folder(uri)}/{PurePosixPath(file).name}.{_digest(f'{table_uri(uri)}/{file}')}", b"")


def refuse_wrong_deletions(uri: str, dataset: Any) -> None:
    """Raise ValueError if local deletion files do not match their checksums, before Lance reads them."""
    table = table_uri(uri)
    if not is_local(uri) or not files_in(f"{table}/_deletions"):
        return
    wrong, _ = wrong_deletions(uri, dataset)
    if wrong:
        raise ValueError(
            f"the table of {uri} is damaged: {', '.join(f'{table}/{name}' for name in wrong)} does not match its "
            "checksum, so deleted passages may return, or others disappear: restore it from a copy, "
            "or rebuild the index"
        )


def wrong_deletions(uri: str, dataset: Any) -> tuple[list[str], int]:
    """Return the paths of changed deletion files, and the number of deletion files without a checksum."""
    sums = dict(file.base_name.rsplit(".", 1) for file in files_in(_checksum_folder(uri)))
    files = sorted(deletion_files(fragment.metadata for fragment in dataset.get_fragments()))
    known = [file for file in files if PurePosixPath(file).name in sums]
    wrong = [file for file in known if _digest(f"{table_uri(uri)}/{file}") != sums[PurePosixPath(file).name]]
    return wrong, len(files) - len(known)


def remove_old_deletion_checksums(uri: str) -> None:
    """Remove the checksums of deletion files that no longer exist."""
    existing = {file.base_name for file in files_in(f"{table_uri(uri)}/_deletions")}
    for file in files_in(_checksum_folder(uri)):
        if PurePosixPath(file.base_name).stem not in existing:
            remove(f"{_checksum_folder(uri)}/{file.base_name}")


def _checksum_folder(uri: str) -> str:
    return f"{uri.rstrip('/')}/deletions"


def _digest(path: str) -> str | None:
    try:
        return _digest_of(path, file_state(path))
    except FileNotFoundError:
        return None


@lru_cache(maxsize=1 << 14)
def _digest_of(path: str, state: str) -> str:
    # `state` (see `file_state`) is a cache key.
    return file_digest(path)


def refuse_to_write(table: pa.Table) -> None:
    """Raise ValueError for rows (with `id` and `collection`) whose vectors or term weights are not finite."""
    wrong = table.take(rows_not_finite(table))
    if len(wrong):
        ids, collections = wrong.column("id").to_pylist(), sorted(set(wrong.column("collection").to_pylist()))
        raise ValueError(
            f"{', '.join(collections)}: {named(ids)} would be stored with NaN or infinity, so the block is not "
            "written: check the weights for damage, encode in float32, or leave out such passages"
        )


def refuse_rows(uri: str, rows: pa.Table | pa.RecordBatch) -> None:
    """Raise ValueError if rows stored at `uri` (with `id`) have vectors or weights that are not finite."""
    wrong = rows_not_finite(rows)
    if len(wrong):
        raise ValueError(
            f"{uri} contains NaN or infinity for {named(rows.column('id').take(pa.array(wrong)).to_pylist())}, so "
            f"every ranking would be wrong: `python jobs/inspect_index.py --index {uri} --verify` lists them; "
            "delete them with jobs/maintain_index.py, and encode the collection again to add them"
        )


def finite_rows(uri: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of the index at `uri`; raises as `refuse_rows`."""
    for batch in batches:
        refuse_rows(uri, batch)
        yield batch


def named(ids: Sequence[str]) -> str:
    """Return the first few ids and the number of others, for a message."""
    first = ", ".join(f"'{shortened(passage_id)}'" for passage_id in ids[:_MAX_NAMED])
    more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
    return f"{'passage' if len(ids) == 1 else 'passages'} {first}{more}"
