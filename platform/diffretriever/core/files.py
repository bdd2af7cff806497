"""Reads and writes files atomically, at local paths and object-store URIs.

A missing file raises FileNotFoundError. Object-store errors raise ValueError with the URI and the setting to check.

pyarrow reads and writes files, Lance reads and writes tables. Both are configured by the same environment variables:
AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and so on.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import mmap
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from diffretriever.schemas.base import error_messages
from diffretriever.schemas.locations import StorePath, parse_location, plain_location

if TYPE_CHECKING:
    from pyarrow import fs

M = TypeVar("M", bound=BaseModel)

AnyLocation: TypeAlias = str | Path | StorePath
"""A path or an object-store URI, also as text."""

_READ_BYTES = 8 << 20
"""Bytes of an object that are fetched at once."""
_REASON_CHARACTERS = 300
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ANSWER_SECONDS, _CONNECT_SECONDS = 60, 10
_TRUE = ("1", "true", "yes", "on", "y")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ADVICE = {
    "ACCESS_DENIED": "access is refused: check the credentials and their rights on the bucket",
    "INVALID_ACCESS_KEY": "the credentials are not known there: check AWS_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH": "the credentials are wrong: check AWS_SECRET_ACCESS_KEY",
    "NO_SUCH_BUCKET": "there is no such bucket: check its name, AWS_REGION and AWS_ENDPOINT_URL",
    "NETWORK_CONNECTION": "nothing answers there: check AWS_ENDPOINT_URL, AWS_REGION and the network",
}
"""Name of an AWS error → problem and fix."""


def cache_dir() -> Path:
    """Return `$DIFFRETRIEVER_CACHE`, or else `~/.cache/diffretriever`."""
    chosen = os.environ.get("DIFFRETRIEVER_CACHE") or "~/.cache/diffretriever"
    return Path(chosen).expanduser().absolute()


def is_local(location: AnyLocation) -> bool:
    """Return whether `location` is a path or a `file:` URI, not an object-store URI."""
    return isinstance(location, Path) or "://" not in plain_location(str(location))


def filesystem_of(location: AnyLocation) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's filesystem of a path or URI, and the path in it.

    Raises:
        ValueError: Unknown kind of object store, or the environment lacks a setting.
    """
    import pyarrow as pa
    from pyarrow import fs

    text = plain_location(str(location))
    if "://" not in text:
        # Some characters of a path have another meaning in a URI.
        return fs.LocalFileSystem(), str(Path(text).absolute())
    scheme, _, path = str(StorePath(text)).partition("://")
    if scheme.lower() == "s3":
        endpoint, region = (next(filter(None, map(os.environ.get, names)), "") for names in (_ENDPOINTS, _REGIONS))
        if endpoint.lower().startswith("http://") and os.environ.get("AWS_ALLOW_HTTP", "").lower() not in _TRUE:
            raise ValueError(f"{text}: Lance refuses the endpoint {endpoint}, which is http: set AWS_ALLOW_HTTP=true")
        return _s3(endpoint, region, path.partition("/")[0]), unquote(path)
    try:
        filesystem_and_path: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{text}: object stores of this kind are not known here ({error}): use s3://") from error
    return filesystem_and_path


@lru_cache(maxsize=8)
def _s3(endpoint: str, region: str, bucket: str) -> fs.S3FileSystem:
    # Not all constructors of pyarrow's filesystems read the endpoint from the environment.
    from pyarrow import fs

    if not endpoint and not region:
        with _named(f"s3://{bucket}"):
            region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        endpoint_override=endpoint or None,
        region=region or "us-east-1",
        # A small object is one request, and errors come when the stream is closed.
        allow_delayed_open=True,
        # The default of 3 seconds is too short for a busy store.
        request_timeout=_ANSWER_SECONDS,
        connect_timeout=_CONNECT_SECONDS,
    )


@contextmanager
def _named(location: AnyLocation) -> Iterator[None]:
    """Translate object-store errors as the module describes."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", str(location)) from None
    except (OSError, pa.ArrowException) as error:
        advice = next(
            (text for name, text in _ADVICE.items() if name in str(error)), "it cannot be read or written now"
        )
        raise ValueError(f"{location}: {advice} ({error})") from error


@contextmanager
def open_input(location: AnyLocation) -> Iterator[BinaryIO]:
    """Open a seekable file for reading bytes; objects are fetched only as far as they are read."""
    local = parse_location(location)
    if isinstance(local, Path):
        with local.open("rb") as file:
            yield file
        return
    filesystem, path = filesystem_of(location)
    with _named(location):
        source = filesystem.open_input_file(path)
    try:
        with io.BufferedReader(source, _READ_BYTES) as stream:
            yield stream
    except OSError as error:
        # Errors of a store, which come while it is read, have no number.
        if type(error) is not OSError or error.errno is not None:
            raise
        with _named(location):
            raise


def read_bytes(location: AnyLocation) -> bytes:
    """Return the content of a file."""
    with open_input(location) as stream:
        return stream.read()


def read_text(location: AnyLocation) -> str:
    """Return the content of a UTF-8 file."""
    return read_bytes(location).decode()


def read_model(location: AnyLocation, kind: type[M], fix: str) -> M:
    """Return the model in a JSON file; raises as `understood` does."""
    with understood(location, fix):
        return kind.model_validate_json(read_bytes(location))


@contextmanager
def understood(location: AnyLocation, fix: str) -> Iterator[None]:
    """Explain parser errors in a block that reads the file `location`; `fix` tells the user how to repair it.

    Raises:
        OSError: The file cannot be read; `filename` names it.
        ValueError: The file is damaged or of another kind; the message names file, problem and fix.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, ValueError) and str(location) in str(error) and not isinstance(error, ValidationError):
            raise
        raise ValueError(f"{location} cannot be used: {_reason(error)}: {fix}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return error_messages(error)[0]
    text = " ".join(str(error).split())[:_REASON_CHARACTERS]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__} {text}".rstrip()


def write_text(location: AnyLocation, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    write_bytes(location, text.encode())


def write_bytes(location: AnyLocation, data: bytes | memoryview) -> None:
    """Write a file, whole or not at all."""
    if is_local(location):
        with whole_file(location) as stream:
            stream.write(data)
        return
    filesystem, path = filesystem_of(location)
    # One call, which no interrupt can split: closing a stream creates its object, even half of it. Without the option,
    # pyarrow compresses names in `.gz`.
    with _named(location), filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(data)


def exists(location: AnyLocation) -> bool:
    """Return whether a file or folder exists; an object-store folder needs a file in it."""
    local = parse_location(location)
    return local.exists() if isinstance(local, Path) else _kind(location) != "NotFound"


def is_file(location: AnyLocation) -> bool:
    """Return whether there is a file."""
    local = parse_location(location)
    return local.is_file() if isinstance(local, Path) else _kind(location) == "File"


def is_folder(location: AnyLocation) -> bool:
    """Return whether there is a folder."""
    local = parse_location(location)
    return local.is_dir() if isinstance(local, Path) else _kind(location) == "Directory"


def _info(location: AnyLocation) -> fs.FileInfo:
    filesystem, path = filesystem_of(location)
    with _named(location):
        return filesystem.get_file_info(path)


def _kind(location: AnyLocation) -> str:
    return str(_info(location).type.name)


def files_in(folder: AnyLocation, *, deep: bool = False) -> list[fs.FileInfo]:
    """Return pyarrow's file infos of a folder, sorted by path; recursively if `deep`."""
    from pyarrow import fs

    filesystem, path = filesystem_of(folder)
    with _named(folder):
        infos = filesystem.get_file_info(fs.FileSelector(path, recursive=deep, allow_not_found=True))
    return sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: str(info.path))


def file_size(location: AnyLocation) -> int:
    """Return the bytes of a file, which must be there."""
    return int(_info(location).size)


def file_state(location: AnyLocation) -> str:
    """Return size and modification time of a file as comparable text."""
    info = _info(location)
    if not info.is_file:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(location))
    return f"{info.size}:{info.mtime_ns}"


def remove(location: AnyLocation) -> None:
    """Delete a file, or a folder with its content, if it exists."""
    filesystem, path = filesystem_of(location)
    kind = _kind(location)
    with _named(location):
        if kind == "Directory":
            filesystem.delete_dir(path)
        elif kind == "File":
            filesystem.delete_file(path)


def file_digest(location: AnyLocation) -> str:
    """Return the SHA-256 of a file, in hex."""
    with open_input(location) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type] # it is buffered


def json_digest(value: object) -> str:
    """Return 16 hex digits of BLAKE2b of a JSON value; the order of keys matters."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


@contextmanager
def whole_file(target: AnyLocation) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `target` only if the block succeeds."""
    path = parse_location(target)
    if not isinstance(path, Path):
        with tempfile.NamedTemporaryFile() as spool:
            yield spool
            spool.flush()
            put_file(Path(spool.name), target)
        return
    temporary = _temporary_for(path)
    try:
        with temporary.open("wb") as stream:
            yield stream
        # Otherwise, a loss of power may leave the new name with an empty file.
        sync_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill that appears at `target` only if the block succeeds."""
    temporary = _temporary_for(target)
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        _move_unless_there(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_path(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush a local folder and its content to disk."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Flush a local file, or the entries of a local folder, to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        # Some network file systems sync files only.
        if not (path.is_dir() and error.errno in _NO_FSYNC):
            raise
    finally:
        os.close(number)


def put_file(file: Path, target: AnyLocation) -> None:
    """Copy a local file atomically to a path or URI."""
    if not file.stat().st_size:
        write_bytes(target, b"")
        return
    with file.open("rb") as stream:
        write_bytes(target, memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))


def put_folder(folder: Path, target: AnyLocation, last: str) -> None:
    """Copy the files of a local folder; `last` is copied last, to mark the folder as complete."""
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        put_file(file, parse_location(target) / file.name)


def _temporary_for(target: Path) -> Path:
    # A file of mkstemp is readable by its owner only, also after it is renamed.
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{uuid.uuid4().hex}.tmp"


def _move_unless_there(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError as error:
        # Another process built the same folder first.
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file among the processes of this node; the file stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetched_folder(location: StorePath, patterns: Sequence[str]) -> Path:
    """Return a cached local copy of an object-store folder, fetched again only when a file changes.

    `patterns` are of paths below the folder; `*` does not match `/`.

    Raises:
        ValueError: No file matches, or one changed meanwhile.
    """
    files = _matching_files(location, patterns)
    if not files:
        raise ValueError(f"{location}: there is no folder with any of {', '.join(patterns)}")
    copy = cache_dir() / "fetched" / json_digest([str(location), files])
    if copy.is_dir():
        return copy
    with locked(copy.parent / f".{copy.name}.lock"):
        if not copy.is_dir():
            with whole_folder(copy) as folder:
                for name, _, _ in files:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    fetch_file(location / name, folder / name)
                if _matching_files(location, patterns) != files:
                    raise ValueError(f"{location} changed while it was fetched: start again")
    return copy


def _matching_files(location: StorePath, patterns: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return path below the folder, size and time of all matching files."""
    _, root = filesystem_of(location)
    files = [(info.path.removeprefix(f"{root}/"), info.size, info.mtime_ns) for info in files_in(location, deep=True)]
    return [file for file in files if any(_matches(PurePosixPath(file[0]), pattern) for pattern in patterns)]


def _matches(path: PurePosixPath, pattern: str) -> bool:
    return len(path.parts) == len(PurePosixPath(pattern).parts) and path.match(pattern)


def fetch_file(location: AnyLocation, target: Path) -> None:
    """Copy a file of an object store to a local path."""
    from pyarrow import fs

    filesystem, path = filesystem_of(location)
    with _named(location):
        fs.copy_files(path, str(target), source_filesystem=filesystem, destination_filesystem=fs.LocalFileSystem())
