"""Reading and writing at a place, local or on an object store, so that nobody sees half a file or half a folder.

Object stores are spoken to by pyarrow, tables on them by Lance. Both take endpoint, region and credentials from the
same variables of the environment: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and so on.
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

from diffretriever.schemas.places import StorePath, as_place, plain_place

if TYPE_CHECKING:
    from pyarrow import fs
    from typing_extensions import Buffer

M = TypeVar("M", bound=BaseModel)

AnyPlace: TypeAlias = str | Path | StorePath
"""A path or an object-store URI, also as text."""

_READ_BYTES = 8 << 20
"""Of an object, fetched at once."""
_REASON_CHARACTERS = 300
_UNKNOWN = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
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
"""What AWS calls an error → what it means to a user."""


def cache_dir() -> Path:
    """Return `$DIFFRETRIEVER_CACHE`, or else `~/.cache/diffretriever`."""
    chosen = os.environ.get("DIFFRETRIEVER_CACHE") or "~/.cache/diffretriever"
    return Path(chosen).expanduser().absolute()


def is_local(place: AnyPlace) -> bool:
    """Return whether this is a path or a `file:` URI, and no object-store URI."""
    return "://" not in plain_place(str(place))


def filesystem_of(place: AnyPlace) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a local path or an object-store URI, and its path in there.

    Raises:
        ValueError: nothing here speaks with object stores of this kind, or the environment lacks a setting.
    """
    import pyarrow as pa
    from pyarrow import fs

    text = plain_place(str(place))
    if is_local(text):
        # Paths may hold what would have another meaning in a URI.
        return fs.LocalFileSystem(), str(Path(text).absolute())
    scheme, _, path = str(StorePath(text)).partition("://")
    if scheme.lower() == "s3":
        endpoint, region = (next(filter(None, map(os.environ.get, names)), "") for names in (_ENDPOINTS, _REGIONS))
        if endpoint.lower().startswith("http://") and os.environ.get("AWS_ALLOW_HTTP", "").lower() not in _TRUE:
            raise ValueError(f"{text}: Lance refuses the endpoint {endpoint}, which is http: set AWS_ALLOW_HTTP=true")
        return _s3(endpoint, region, path.partition("/")[0]), unquote(path)
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{text}: object stores of this kind are not known here ({error}): use s3://") from error
    return found


@lru_cache(maxsize=8)
def _s3(endpoint: str, region: str, bucket: str) -> fs.S3FileSystem:
    """Return the connection to a bucket.

    pyarrow itself looks for an endpoint in the environment in some of its ways to a filesystem, and not in others.
    """
    from pyarrow import fs

    if not endpoint and not region:
        with _told(f"s3://{bucket}"):
            region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        endpoint_override=endpoint or None,
        region=region or "us-east-1",
        # A small object is one request then, and errors come when the stream is closed.
        allow_delayed_open=True,
        # Of its own it gives up after 3 seconds, which a busy store may well take.
        request_timeout=_ANSWER_SECONDS,
        connect_timeout=_CONNECT_SECONDS,
    )


@contextmanager
def _told(place: AnyPlace) -> Iterator[None]:
    """Turn errors of an object store into ones that name the place.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: anything else; the message says what to check.
    """
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", str(place)) from None
    except (OSError, pa.ArrowException) as error:
        said = str(error)
        advice = next((text for name, text in _ADVICE.items() if name in said), "it cannot be read or written now")
        raise ValueError(f"{place}: {advice} ({said})") from error


@contextmanager
def open_input(place: AnyPlace) -> Iterator[BinaryIO]:
    """Open a file for reading bytes; it can be sought in. Of an object, what is not read is not fetched.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: the object store refuses it, or does not answer.
    """
    if is_local(place):
        with _path(place).open("rb") as file:
            yield file
        return
    with io.BufferedReader(_Object(place), _READ_BYTES) as stream:
        yield stream


class _Object(io.RawIOBase):
    """An object of a store, open for reading; errors of the store name the place."""

    def __init__(self, place: AnyPlace) -> None:
        super().__init__()
        self._place = place
        filesystem, path = filesystem_of(place)
        with _told(place):
            self._source = filesystem.open_input_file(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        with _told(self._place):
            return int(self._source.readinto(buffer))

    def readall(self) -> bytes:
        # Without this, Python asks the store for 8 KiB at a time.
        with _told(self._place):
            return bytes(self._source.read())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        return int(self._source.tell())

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def read_bytes(place: AnyPlace) -> bytes:
    """Return what a file holds; raises as `open_input` does."""
    with open_input(place) as stream:
        return stream.read()


def read_text(place: AnyPlace) -> str:
    """Return the UTF-8 text that a file holds; raises as `open_input` does."""
    return read_bytes(place).decode()


def read_model(place: AnyPlace, kind: type[M], fix: str) -> M:
    """Return the value of a model that a file of JSON holds; raises as `understood` does."""
    with understood(place, fix):
        return kind.model_validate_json(read_bytes(place))


@contextmanager
def understood(place: AnyPlace, fix: str) -> Iterator[None]:
    """Run what reads a file and makes sense of it, whatever its parsers raise for damaged bytes.

    Args:
        place: the file.
        fix: what a user is to do about one that cannot be used.

    Raises:
        OSError: it cannot be read; `filename` names it.
        ValueError: it is damaged, or of another kind; the message names it, and says what is wrong and what to do.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, ValueError) and str(place) in str(error) and not isinstance(error, ValidationError):
            raise
        raise ValueError(f"{place} cannot be used: {_reason(error)}: {fix}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else first["msg"]
    text = " ".join(str(error).split())[:_REASON_CHARACTERS]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__} {text}".rstrip()


def write_text(place: AnyPlace, text: str) -> None:
    """Write `text` as UTF-8 to a local path or an object-store URI, whole or not at all."""
    write_bytes(place, text.encode())


def write_bytes(place: AnyPlace, data: bytes | memoryview) -> None:
    """Write `data` to a local path or an object-store URI, whole or not at all.

    Raises:
        ValueError: the object store refuses it, or does not answer.
    """
    if is_local(place):
        with whole_file(place) as stream:
            stream.write(data)
        return
    filesystem, path = filesystem_of(place)
    # One call, which no interrupt divides: when a stream is closed, its object is put in place, half of it too. And by
    # itself pyarrow compresses what is named `.gz`.
    with _told(place), filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(data)


def exists(place: AnyPlace) -> bool:
    """Return whether a file or folder is there; a folder of an object store is there if anything is in it."""
    return _path(place).exists() if is_local(place) else _kind(place) != "NotFound"


def is_file(place: AnyPlace) -> bool:
    """Return whether a file is there; raises `ValueError` where an object store does not say."""
    return _path(place).is_file() if is_local(place) else _kind(place) == "File"


def is_folder(place: AnyPlace) -> bool:
    """Return whether a folder is there; raises `ValueError` where an object store does not say."""
    return _path(place).is_dir() if is_local(place) else _kind(place) == "Directory"


def _kind(place: AnyPlace) -> str:
    filesystem, path = filesystem_of(place)
    with _told(place):
        return str(filesystem.get_file_info(path).type.name)


def files_in(folder: AnyPlace, *, deep: bool = False) -> list[fs.FileInfo]:
    """Return what pyarrow says of each file right in a folder, or also below it, by path; none where there is none."""
    from pyarrow import fs

    filesystem, path = filesystem_of(folder)
    with _told(folder):
        found = filesystem.get_file_info(fs.FileSelector(path, recursive=deep, allow_not_found=True))
    return sorted((info for info in found if info.type == fs.FileType.File), key=lambda info: str(info.path))


def file_size(place: AnyPlace) -> int:
    """Return the bytes of a file, which must be there."""
    filesystem, path = filesystem_of(place)
    with _told(place):
        return int(filesystem.get_file_info(path).size)


def file_state(place: AnyPlace) -> str:
    """Return a text that changes when a file does: its size and the time of its last change.

    Raises:
        FileNotFoundError: it is not there.
    """
    if is_local(place):
        status = _path(place).stat()
        return f"{status.st_size}:{status.st_mtime_ns}"
    filesystem, path = filesystem_of(place)
    with _told(place):
        info = filesystem.get_file_info(path)
    if not info.is_file:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", str(place))
    return f"{info.size}:{info.mtime_ns}"


def remove(place: AnyPlace) -> None:
    """Delete a file, or a folder with all that is in it; there may be nothing."""
    filesystem, path = filesystem_of(place)
    with _told(place):
        kind = filesystem.get_file_info(path).type.name
        if kind == "Directory":
            filesystem.delete_dir(path)
        elif kind == "File":
            filesystem.delete_file(path)


def _path(place: AnyPlace) -> Path:
    found = as_place(place)
    assert isinstance(found, Path), "the caller has checked this"
    return found


def file_digest(place: AnyPlace) -> str:
    """Return the SHA-256 of a file, in hex; raises as `open_input` does."""
    with open_input(place) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_digest(value: object) -> str:
    """Return 16 hex digits of BLAKE2b of a JSON value; the order of the keys of an object counts."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


@contextmanager
def whole_file(target: AnyPlace) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `target` only if the block succeeds."""
    if not is_local(target):
        with _whole_object(target) as stream:
            yield stream
        return
    path = _path(target)
    temporary = _temporary_beside(path)
    try:
        with temporary.open("wb") as stream:
            yield stream
        # Without, a loss of power may leave the new name with an empty file.
        sync_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


@contextmanager
def _whole_object(target: AnyPlace) -> Iterator[IO[bytes]]:
    """Collect an object in a temporary file of this machine, and put it when the block succeeds."""
    with tempfile.TemporaryFile() as spool:
        yield spool
        spool.flush()
        if not os.fstat(spool.fileno()).st_size:
            write_bytes(target, b"")
            return
        write_bytes(target, memoryview(mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ)))


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill that appears at `target` only if the block succeeds."""
    temporary = _temporary_beside(target)
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        _move_unless_there(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_path(target.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has all that is in a local folder, and the folder."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Wait until the disk has what a local file holds, or the entries of a local folder."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        # Some file systems of a network know it of files only.
        if not (path.is_dir() and error.errno in _UNKNOWN):
            raise
    finally:
        os.close(number)


def put_file(file: Path, target: AnyPlace) -> None:
    """Copy a local file to a place, whole or not at all."""
    if not file.stat().st_size:
        write_bytes(target, b"")
        return
    with file.open("rb") as stream:
        write_bytes(target, memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))


def put_folder(folder: Path, target: AnyPlace, last: str) -> None:
    """Copy the files right in a local folder to a place, `last` after all others: it says that they are there."""
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        put_file(file, as_place(target) / file.name)


def _temporary_beside(target: Path) -> Path:
    # mkstemp would make it readable by its owner only, and renaming keeps that.
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{uuid.uuid4().hex}.tmp"


def _move_unless_there(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError as error:
        # Another process built the same folder first: its content is as good as ours, though it may be gone by now.
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Wait until no other process of this machine is in such a block. The file stays: a new one is another lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetched_folder(place: StorePath, wanted: Sequence[str]) -> Path:
    """Return a local copy of a folder on an object store, whole; a machine fetches it once.

    Processes that want it meanwhile wait. When a file there changes its size or its time, what is fetched next is
    another copy; that of before stays for whoever reads it.

    Args:
        place: the folder.
        wanted: patterns of names, with `*`, and of paths below the folder; `*` does not reach into deeper folders.

    Raises:
        ValueError: no such file is there, one changed meanwhile, or the store refuses it or does not answer.
    """
    files = _wanted_files(place, wanted)
    if not files:
        raise ValueError(f"{place}: there is no folder with any of {', '.join(wanted)}")
    copy = cache_dir() / "fetched" / json_digest([str(place), files])
    if copy.is_dir():
        return copy
    with locked(copy.parent / f".{copy.name}.lock"):
        if not copy.is_dir():
            with whole_folder(copy) as folder:
                for name, _, _ in files:
                    fetch_file(place / name, folder / name)
                if _wanted_files(place, wanted) != files:
                    raise ValueError(f"{place} changed while it was fetched: start again")
    return copy


def _wanted_files(place: StorePath, wanted: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return path below the folder, size and time of the files that any pattern matches."""
    _, root = filesystem_of(place)
    found = [(info.path.removeprefix(f"{root}/"), info.size, info.mtime_ns) for info in files_in(place, deep=True)]
    return [file for file in found if any(_matches(PurePosixPath(file[0]), pattern) for pattern in wanted)]


def _matches(path: PurePosixPath, pattern: str) -> bool:
    return len(path.parts) == len(PurePosixPath(pattern).parts) and path.match(pattern)


def fetch_file(place: AnyPlace, target: Path) -> None:
    """Copy a file of an object store to a local path; raises as `open_input` does."""
    from pyarrow import fs

    target.parent.mkdir(parents=True, exist_ok=True)
    filesystem, path = filesystem_of(place)
    with _told(place):
        fs.copy_files(path, str(target), source_filesystem=filesystem, destination_filesystem=fs.LocalFileSystem())
