"""A folder of files made of an index, beside it: used in place on a local disk, fetched once from an object store.

On a local disk the folder appears by a rename. On a store a name can be taken by several writers at once, so the files
go below a name made of their content, and a listing of them comes last: what has no listing is not there.

    codes/KEY/artefact.json          {"files": {"codes.bin": {"bytes": …, "sha256": …}, …}, "header": {…}}
    codes/KEY/DIGEST/codes.bin       DIGEST: of the listing, which is also the name in the local cache
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from pydantic import NonNegativeInt, ValidationError, field_validator

from diffretriever.artefacts.cache import HeldFolder, shared_cache
from diffretriever.files import file_digest, filesystem_of, is_local, whole_folder, write_bytes
from schemas.base import Model

if TYPE_CHECKING:
    from pyarrow import fs

T = TypeVar("T")

HEADER = "header.json"
"""File of an artefact that says what the others are."""
_LISTING = "artefact.json"
_CHUNK_BYTES = 8 << 20
_AT_ONCE = 16
"""Artefacts fetched at a time: one stream of a store is slower than a network."""


class ListedFile(Model):
    """A file of an artefact."""

    bytes: NonNegativeInt
    sha256: str


class Listing(Model):
    """The files of an artefact on an object store."""

    files: dict[str, ListedFile]
    """By their paths in the folder."""
    header: dict[str, int]
    """What its `header.json` says; empty where it has none."""

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, ListedFile]) -> dict[str, ListedFile]:
        for name in files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name} lies outside of the artefact")
        return files

    @property
    def digest(self) -> str:
        """A name of the content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files.values())


@dataclass(frozen=True)
class Artefact:
    """A folder of files beside an index, there or not; they never change.

    Attributes:
        uri: of the index.
        name: of the folder, such as `codes/KEY`.
    """

    uri: str
    name: str

    @property
    def is_local(self) -> bool:
        """Whether it is used where it lies."""
        return is_local(self.uri)

    @property
    def place(self) -> str:
        """Path or URI of the folder."""
        return f"{self.uri.rstrip('/')}/{self.name}"

    @property
    def path(self) -> Path:
        """The folder, of a local index."""
        assert self.is_local, "an artefact on an object store has no path"
        return Path(self.uri) / self.name

    def size(self) -> int | None:
        """Return its bytes, None where it is not there."""
        if self.is_local:
            return bytes_in(self.path) if self.path.is_dir() else None
        listing = self._listing()
        return None if listing is None else listing.bytes

    def open(self) -> HeldFolder | None:
        """Return its folder on this machine, fetched if need be; None where it is not there.

        Raises:
            ValueError: what lies on the store is damaged, or does not fit into the cache.
        """
        if self.is_local:
            return HeldFolder(self.path) if self.path.is_dir() else None
        try:
            return self._fetched()
        except FileNotFoundError:
            # Removed, or made anew by another process, since its listing was read.
            _known.cache_clear()
            return self._fetched()

    def header(self) -> dict[str, int] | None:
        """Return what its `header.json` says without fetching the rest; None where there is none."""
        if self.is_local:
            return read_json(self.path / HEADER)
        listing = self._listing()
        return None if listing is None else listing.header

    @contextmanager
    def build(self) -> Iterator[Path]:
        """Give a folder to fill, which is the artefact if the block succeeds; one that is there already stays."""
        if self.is_local:
            with whole_folder(self.path) as temporary:
                yield temporary
            return
        root = shared_cache().root
        root.mkdir(parents=True, exist_ok=True)
        # What is killed is found by its name, and goes after a day.
        with tempfile.TemporaryDirectory(dir=root, prefix=".", suffix=".tmp") as folder:
            yield Path(folder)
            self._put(Path(folder))

    def has_file(self, file: str) -> bool:
        """Return whether a file was added to it."""
        return (self.path / file).is_file() if self.is_local else self._added(file).size() is not None

    def add_file(self, file: str, data: bytes) -> None:
        """Add a file to an artefact that is there, whole or not at all; on a store it is an artefact by itself."""
        if self.is_local:
            write_bytes(self.path / file, data)
            return
        with self._added(file).build() as folder:
            (folder / file).write_bytes(data)

    def open_file(self, file: str) -> HeldFolder | None:
        """Return the folder on this machine that an added file lies in; None where it is not there."""
        if self.is_local:
            return HeldFolder(self.path) if self.has_file(file) else None
        return self._added(file).open()

    def remove(self) -> None:
        """Remove it, whole or damaged; nothing happens where it is not there."""
        if self.is_local:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        files, root = _store(self.uri)
        _known.cache_clear()
        # Without its listing it is gone, whatever happens then.
        listing = f"{root}/{self.name}/{_LISTING}"
        if _exists(files, listing):
            files.delete_file(listing)
        if _exists(files, f"{root}/{self.name}"):
            files.delete_dir(f"{root}/{self.name}")

    def _added(self, file: str) -> Artefact:
        return Artefact(self.uri, f"{self.name}/{file}")

    def _fetched(self) -> HeldFolder | None:
        listing = self._listing()
        if listing is None:
            return None
        return shared_cache().get(listing.digest, listing.bytes, lambda folder: self._fetch(listing, folder))

    def _listing(self) -> Listing | None:
        try:
            return _known(self.uri, self.name)
        except FileNotFoundError:
            return None

    def _put(self, folder: Path) -> None:
        paths = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
        listed = {name: ListedFile(bytes=f.stat().st_size, sha256=file_digest(f)) for name, f in paths.items()}
        listing = Listing(files=listed, header=read_json(folder / HEADER) or {})
        files, root = _store(self.uri)
        for name, file in paths.items():
            with file.open("rb") as source, files.open_output_stream(self._object(root, listing, name)) as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
        with files.open_output_stream(f"{root}/{self.name}/{_LISTING}") as target:
            target.write(listing.model_dump_json().encode())
        _known.cache_clear()

    def _fetch(self, listing: Listing, folder: Path) -> None:
        files, root = _store(self.uri)
        for name, listed in listing.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with files.open_input_stream(self._object(root, listing, name)) as source, (folder / name).open("wb") as to:
                while chunk := source.read(_CHUNK_BYTES):
                    to.write(chunk)
                    digest.update(chunk)
            if digest.hexdigest() != listed.sha256:
                raise ValueError(f"{self.place}: {name} is damaged: remove the folder and make it again")

    def _object(self, root: str, listing: Listing, name: str) -> str:
        return f"{root}/{self.name}/{listing.digest}/{name}"


def open_all(artefacts: Sequence[Artefact]) -> list[HeldFolder | None]:
    """Return what `Artefact.open` returns of each; those on a store are fetched several at a time."""
    return _of_each(artefacts, Artefact.open)


def open_files(artefacts: Sequence[Artefact], file: str) -> list[HeldFolder | None]:
    """Return what `Artefact.open_file` returns of each, likewise."""
    return _of_each(artefacts, lambda artefact: artefact.open_file(file))


def headers_of(artefacts: Sequence[Artefact]) -> list[dict[str, int] | None]:
    """Return what `Artefact.header` returns of each, likewise."""
    return _of_each(artefacts, Artefact.header)


def sizes_of_all(artefacts: Sequence[Artefact]) -> list[int | None]:
    """Return what `Artefact.size` returns of each, likewise."""
    return _of_each(artefacts, Artefact.size)


def _of_each(artefacts: Sequence[Artefact], ask: Callable[[Artefact], T]) -> list[T]:
    if all(artefact.is_local for artefact in artefacts):
        return [ask(artefact) for artefact in artefacts]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="artefacts") as threads:
        return list(threads.map(ask, artefacts))


def folders_in(uri: str, name: str) -> list[str]:
    """Return the names of the folders in the folder `name` of the index at `uri`, those half-made included."""
    if is_local(uri):
        return [folder.name for folder in (Path(uri) / name).glob("*/")]
    from pyarrow import fs

    files, root = _store(uri)
    found = files.get_file_info(fs.FileSelector(f"{root}/{name}", allow_not_found=True))
    return [each.base_name for each in found if each.type == fs.FileType.Directory]


def read_json(file: Path) -> dict[str, int] | None:
    """Return what a JSON file holds, None where there is no file."""
    try:
        values: dict[str, int] = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    return values


def bytes_in(folder: Path) -> int:
    """Return the size of the files in a folder and those below it; 0 where there is no folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@lru_cache(maxsize=1 << 17)
def _known(uri: str, name: str) -> Listing:
    # Files never change: once seen, they need not be looked for at every new version.
    files, root = _store(uri)
    with files.open_input_stream(f"{root}/{name}/{_LISTING}") as stream:
        data = stream.read()
    try:
        return Listing.model_validate_json(data)
    except ValidationError as error:
        place = f"{uri.rstrip('/')}/{name}"
        raise ValueError(f"{place}/{_LISTING} is damaged: remove the folder and make it again") from error


@lru_cache(maxsize=32)
def _store(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of an object store and the path of an index in there."""
    files, path = filesystem_of(uri)
    return files, path.rstrip("/")


def _exists(files: fs.FileSystem, path: str) -> bool:
    from pyarrow import fs

    return bool(files.get_file_info(path).type != fs.FileType.NotFound)
