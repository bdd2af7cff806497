"""Where files are kept, and writing so that nobody sees half a file or half a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from schemas.places import plain_place

if TYPE_CHECKING:
    from pyarrow import fs


def cache_dir() -> Path:
    """Return `$DIFFRETRIEVER_CACHE`, or else `~/.cache/diffretriever`."""
    chosen = os.environ.get("DIFFRETRIEVER_CACHE") or "~/.cache/diffretriever"
    return Path(chosen).expanduser().absolute()


def is_local(uri: str) -> bool:
    """Return whether this is a path or a `file:` URI, and no object-store URI."""
    return "://" not in plain_place(uri)


def filesystem_of(place: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a local path or an object-store URI, and its path in there."""
    from pyarrow import fs

    place = plain_place(place)
    # Paths may hold what would have another meaning in a URI.
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(str(Path(place).absolute()) if is_local(place) else place)
    return found


def write_text(place: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to a local path or an object-store URI; a put to a store is whole by itself."""
    write_bytes(place, text.encode())


def write_bytes(place: str | Path, data: bytes) -> None:
    """Write `data` to a local path or an object-store URI."""
    place = plain_place(str(place))
    if is_local(place):
        with whole_file(Path(place)) as stream:
            stream.write(data)
        return
    filesystem, path = filesystem_of(place)
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a local file, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_digest(value: object) -> str:
    """Return 16 hex digits of BLAKE2b of a JSON value; the order of the keys of an object counts."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `target` only if the block succeeds."""
    temporary = _temporary_beside(target)
    try:
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill that appears at `target` only if the block succeeds."""
    temporary = _temporary_beside(target)
    temporary.mkdir()
    try:
        yield temporary
        _move_unless_there(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_beside(target: Path) -> Path:
    # mkstemp would make it readable by its owner only, and renaming keeps that.
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{uuid.uuid4().hex}.tmp"


def _move_unless_there(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        # Another process built the same folder first: its content is as good as ours.
        if not target.is_dir():
            raise
