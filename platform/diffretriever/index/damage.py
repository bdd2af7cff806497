"""What is wrong with a table that Lance does not open, or opens at a version before the last: told from its files.

A version of a table is a manifest in `_versions`, named by its number or by what is left of 2^64 - 1 above it. Lance
opens the newest that is there; beside them it notes the number of the newest it has written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from lance.file import LanceFileReader

from diffretriever.files import file_state, files_in, is_local, read_bytes
from diffretriever.full_disk import FullDiskError, full_disk

NOT_FOUND = "was not found"
"""In the error of Lance where there is no table, which has no class of its own for it."""
_MOST = 2**64 - 1
_OPENED: set[tuple[str, str]] = set()
"""Data files that this process has opened: place and state."""
_HINT = "latest_version_hint.json"
_SUFFIX = ".manifest"


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
        noted = int(json.loads(read_bytes(f"{table}/_versions/{_HINT}"))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # A table of an older Lance has no such note, and its loss loses nothing.
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


def not_opened(uri: str, table: str, error: Exception) -> ValueError | FullDiskError | None:
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


def unreachable(uri: str, error: Exception) -> ValueError | FullDiskError:
    """Return the error of a place that Lance can neither read nor write, with Lance's reason."""
    return full_disk(error, [uri]) or ValueError(f"cannot reach the index at {uri}: {reason_of(error)}")


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
    back = (
        f"remove that file to go back to version {older[0]}, and run the jobs of since then again"
        if older
        else "remove the index and make it again"
    )
    return ValueError(
        f"the index at {uri} is damaged: version {newest} cannot be opened ({reason}). Restore "
        f"{table}/_versions/{versions[newest]} from a copy, or {back}"
    )
