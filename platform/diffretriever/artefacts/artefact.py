"""A folder of files made of an index, beside it: used in place on a local disk, fetched once from an object store.

A listing of the files, with the size and the SHA-256 of each, is written last: sizes are compared whenever an artefact
is opened, and contents when it is fetched from a store or an index is verified. On a local disk the folder appears by a
rename, once all of it is on the disk. On a store a name can be taken by several writers at once, so the files go below
a name made of their content: what has no listing is not there.

    codes/KEY/artefact.json          {"files": {"codes.bin": {"bytes": …, "sha256": …}, …}, "header": {…}, "digest": …}
    codes/KEY/codes.bin              on a local disk
    codes/KEY/DIGEST/codes.bin       on a store; DIGEST: of the listing, which is also the name in the local cache
"""

from __future__ import annotations

import builtins
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from pydantic import NonNegativeInt, TypeAdapter, field_validator

from diffretriever.artefacts.cache import HeldFolder, shared_cache
from diffretriever.files import file_digest, filesystem_of, is_local, sync_folder, sync_path, whole_folder
from diffretriever.full_disk import full_disk
from diffretriever.schemas.base import Model

if TYPE_CHECKING:
    from pyarrow import fs

T = TypeVar("T")

HEADER = "header.json"
"""File that says what the others are, to whoever builds an artefact; it goes into the listing."""
LISTING = "artefact.json"
"""File that lists the others."""
_LOG = logging.getLogger(__name__)
_NUMBERS = TypeAdapter(dict[str, int])
_CHUNK_BYTES = 8 << 20
_AT_ONCE = 16
"""Artefacts fetched at a time: one stream of a store is slower than a network."""


class DamagedError(ValueError):
    """An artefact is not what was written; the message says which, and what is wrong with it."""


class ListedFile(Model):
    """A file of an artefact."""

    bytes: NonNegativeInt
    sha256: str


class Listing(Model):
    """The files of an artefact."""

    files: dict[str, ListedFile]
    """By their paths in the folder."""
    header: dict[str, int]
    """What its builder said of them; empty where it said nothing."""

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
        """Of all files, this one included."""
        return sum(file.bytes for file in self.files.values()) + len(self.to_bytes())

    @classmethod
    def seal(cls, folder: Path) -> Listing:
        """List the files of a folder in the folder, take its header in, and wait until all of it is on the disk."""
        said = folder / HEADER
        header = _NUMBERS.validate_json(said.read_bytes()) if said.is_file() else {}
        said.unlink(missing_ok=True)
        paths = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
        files = {name: ListedFile(bytes=f.stat().st_size, sha256=file_digest(f)) for name, f in paths.items()}
        listing = cls(files=files, header=header)
        sync_folder(folder)
        (folder / LISTING).write_bytes(listing.to_bytes())
        sync_path(folder / LISTING)
        sync_path(folder)
        return listing

    def to_bytes(self) -> builtins.bytes:
        """Return it as JSON with its digest, which `parse` reads."""
        return json.dumps({**self.model_dump(), "digest": self.digest}).encode()

    @classmethod
    def parse(cls, data: builtins.bytes) -> Listing:
        """Read what `to_bytes` gave; raises ValueError for anything else."""
        values = json.loads(data)
        if not isinstance(values, dict):
            raise ValueError("this is no listing")
        said = values.pop("digest", None)
        listing = cls.model_validate(values)
        if said != listing.digest:
            raise ValueError("the listing has another digest than it says")
        return listing

    def check_sizes(self, folder: Path) -> None:
        """Raise DamagedError for a file that is missing or of another size; nothing is read."""
        for name, listed in self.files.items():
            try:
                size = (folder / name).stat().st_size
            except OSError as error:
                raise DamagedError(f"{folder}: {name} cannot be read ({error.strerror})") from error
            if size != listed.bytes:
                raise DamagedError(f"{folder}: {name} has {size:,} bytes, and {listed.bytes:,} were written")

    def check_contents(self, folder: Path) -> None:
        """Raise DamagedError for a file that is not what was written; all of them are read."""
        self.check_sizes(folder)
        for name, listed in self.files.items():
            try:
                digest = file_digest(folder / name)
            except OSError as error:
                raise DamagedError(f"{folder}: {name} cannot be read ({error.strerror})") from error
            if digest != listed.sha256:
                raise DamagedError(f"{folder}: {name} is damaged")


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
            DamagedError: files are missing, or have other sizes than were written; of those fetched just now, other
                contents.
            ValueError: what lies on the store does not fit into the cache.
        """
        if self.is_local:
            return self._in_place()
        try:
            return self._fetched()
        except FileNotFoundError:
            # Removed, or made anew by another process, since its listing was read.
            _known.cache_clear()
        try:
            return self._fetched()
        except FileNotFoundError as error:
            raise DamagedError(f"{self.place}: a file that its listing names is missing ({error})") from error

    def header(self) -> dict[str, int] | None:
        """Return what its builder said of it without fetching the rest; None where it is not there.

        Raises:
            DamagedError: the listing is not what was written.
        """
        listing = self._listing()
        return None if listing is None else listing.header

    def check(self) -> None:
        """Read all of it, and compare it with what was written; there may be nothing.

        Raises:
            DamagedError: it is not what was written.
        """
        if self.is_local and self._in_place() is None:
            return
        listing = self._listing()
        if listing is None:
            return
        if self.is_local:
            listing.check_contents(self.path)
        else:
            self._check_objects(listing)

    @contextmanager
    def build(self) -> Iterator[Path]:
        """Give a folder to fill, which is the artefact if the block succeeds; one that is there already stays."""
        if self.is_local:
            with whole_folder(self.path) as temporary:
                yield temporary
                Listing.seal(temporary)
            sync_path(self.path.parent)
            return
        root = shared_cache().root
        root.mkdir(parents=True, exist_ok=True)
        # What is killed is found by its name, and goes after a day.
        with tempfile.TemporaryDirectory(dir=root, prefix=".", suffix=".tmp") as folder:
            yield Path(folder)
            self._put(Path(folder))

    @contextmanager
    def adding(self, name: str) -> Iterator[Path]:
        """Give a folder to fill, which is added to this artefact if the block succeeds, in the place of an earlier one.

        It is an artefact by itself.
        """
        added = self._added(name)
        added.remove()
        with added.build() as folder:
            yield folder

    def open_added(self, name: str) -> HeldFolder | None:
        """Return the folder on this machine of what was added under a name; None where it is not there.

        Raises:
            DamagedError: as `open`.
        """
        return self._added(name).open()

    def has_added(self, name: str) -> bool:
        """Return whether there is something that was added under a name; it may be damaged."""
        return unless_damaged(self._added(name).size) is not None

    def check_added(self, name: str) -> None:
        """Do what `check` does with what was added under a name."""
        self._added(name).check()

    def remove(self) -> None:
        """Remove it, whole or damaged; nothing happens where it is not there."""
        if self.is_local:
            if self.path.is_file():
                self.path.unlink()
            shutil.rmtree(self.path, ignore_errors=True)
            return
        files, root = _store(self.uri)
        _known.cache_clear()
        # Without its listing it is gone, whatever happens then.
        listing = f"{root}/{self.name}/{LISTING}"
        if _exists(files, listing):
            files.delete_file(listing)
        if _exists(files, f"{root}/{self.name}"):
            files.delete_dir(f"{root}/{self.name}")

    def _added(self, name: str) -> Artefact:
        return Artefact(self.uri, f"{self.name}/{name}")

    def _in_place(self) -> HeldFolder | None:
        """Return the folder of a local artefact; None where it is not there."""
        if not self.path.is_dir():
            return None
        listing = self._listing()
        if listing is None:
            raise DamagedError(f"{self.path}: {LISTING} is missing")
        listing.check_sizes(self.path)
        return HeldFolder(self.path)

    def _fetched(self) -> HeldFolder | None:
        listing = self._listing()
        if listing is None:
            return None
        held = self._cached(listing)
        try:
            listing.check_sizes(held.folder)
        except DamagedError as error:
            _LOG.warning("%s: it is fetched again", error)
            shared_cache().discard(held)
            held = self._cached(listing)
        return held

    def _cached(self, listing: Listing) -> HeldFolder:
        return shared_cache().get(listing.digest, listing.bytes, lambda folder: self._fetch(listing, folder))

    def _listing(self) -> Listing | None:
        try:
            if not self.is_local:
                return _known(self.uri, self.name)
            return _listing_in(self.path)
        except FileNotFoundError:
            return None

    def _put(self, folder: Path) -> None:
        listing = Listing.seal(folder)
        files, root = _store(self.uri)
        for name in listing.files:
            target = self._object(root, listing, name)
            with (folder / name).open("rb") as source, files.open_output_stream(target) as to:
                while chunk := source.read(_CHUNK_BYTES):
                    to.write(chunk)
        with files.open_output_stream(f"{root}/{self.name}/{LISTING}") as to:
            to.write(listing.to_bytes())
        _known.cache_clear()

    def _fetch(self, listing: Listing, folder: Path) -> None:
        for name in listing.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("wb") as target:
                self._read_object(listing, name, target.write)
        (folder / LISTING).write_bytes(listing.to_bytes())

    def _check_objects(self, listing: Listing) -> None:
        """Compare what lies on the store, and what this machine has of it, with the listing."""
        try:
            for name in listing.files:
                self._read_object(listing, name, len)
        except FileNotFoundError as error:
            raise DamagedError(f"{self.place}: a file that its listing names is missing ({error})") from error
        held = shared_cache().held(listing.digest, listing.bytes)
        if held is None:
            return
        try:
            listing.check_contents(held.folder)
        except DamagedError:
            # The store's is sound: the next to open it fetches that.
            shared_cache().discard(held)
            raise

    def _read_object(self, listing: Listing, name: str, use: Callable[[bytes], int]) -> None:
        files, root = _store(self.uri)
        digest = hashlib.sha256()
        with files.open_input_stream(self._object(root, listing, name)) as source:
            while chunk := source.read(_CHUNK_BYTES):
                use(chunk)
                digest.update(chunk)
        if digest.hexdigest() != listing.files[name].sha256:
            raise DamagedError(f"{self.place}: {name} is damaged")

    def _object(self, root: str, listing: Listing, name: str) -> str:
        return f"{root}/{self.name}/{listing.digest}/{name}"


def open_all(artefacts: Sequence[Artefact]) -> list[HeldFolder | None]:
    """Return what `Artefact.open` returns of each, several fetched at a time from a store; None of damaged ones."""
    return _of_each(artefacts, Artefact.open)


def open_all_added(artefacts: Sequence[Artefact], name: str) -> list[HeldFolder | None]:
    """Return what `Artefact.open_added` returns of each, likewise."""
    return _of_each(artefacts, lambda artefact: artefact.open_added(name))


def headers_of(artefacts: Sequence[Artefact]) -> list[dict[str, int] | None]:
    """Return what `Artefact.header` returns of each, likewise."""
    return _of_each(artefacts, Artefact.header)


def sizes_of_all(artefacts: Sequence[Artefact]) -> list[int | None]:
    """Return what `Artefact.size` returns of each, likewise."""
    return _of_each(artefacts, Artefact.size)


def _of_each(artefacts: Sequence[Artefact], ask: Callable[[Artefact], T | None]) -> list[T | None]:
    asked: list[Callable[[], T | None]] = [partial(ask, artefact) for artefact in artefacts]
    if all(artefact.is_local for artefact in artefacts):
        return [unless_damaged(each) for each in asked]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="artefacts") as threads:
        return list(threads.map(unless_damaged, asked))


def unless_damaged(ask: Callable[[], T | None]) -> T | None:
    """Return what `ask` returns; None and a line in the log where an artefact is damaged, or has no room here."""
    try:
        return ask()
    except DamagedError as error:
        _LOG.warning("%s: it is passed over until the job that makes it is run again", error)
    except OSError as error:
        if full_disk(error) is None:
            raise
        _LOG.warning("%s; what it was wanted for is searched without it, slower", error)
    return None


def folders_in(uri: str, name: str) -> list[str]:
    """Return the names of the folders in the folder `name` of the index at `uri`, those half-made included."""
    if is_local(uri):
        return [folder.name for folder in (Path(uri) / name).glob("*/")]
    from pyarrow import fs

    files, root = _store(uri)
    found = files.get_file_info(fs.FileSelector(f"{root}/{name}", allow_not_found=True))
    return [each.base_name for each in found if each.type == fs.FileType.Directory]


def header_in(folder: Path) -> dict[str, int] | None:
    """Return what the builder of the artefact in a local folder said; None where there is none.

    Raises:
        DamagedError: its listing is not what was written.
    """
    listing = _listing_in(folder)
    return None if listing is None else listing.header


def bytes_in(folder: Path) -> int:
    """Return the size of the files in a folder and those below it; 0 where there is no folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _listing_in(folder: Path) -> Listing | None:
    """Return the listing in a local folder; None where there is none."""
    try:
        data = (folder / LISTING).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedError(f"{folder}: {LISTING} cannot be read ({error.strerror})") from error
    return _listing_from(data, str(folder))


def _listing_from(data: bytes, place: str) -> Listing:
    try:
        return Listing.parse(data)
    except ValueError as error:
        raise DamagedError(f"{place}: {LISTING} is damaged") from error


@lru_cache(maxsize=1 << 17)
def _known(uri: str, name: str) -> Listing:
    # Files never change: once seen, they need not be looked for at every new version.
    files, root = _store(uri)
    with files.open_input_stream(f"{root}/{name}/{LISTING}") as stream:
        return _listing_from(stream.read(), f"{uri.rstrip('/')}/{name}")


@lru_cache(maxsize=32)
def _store(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of an object store and the path of an index in there."""
    files, path = filesystem_of(uri)
    return files, path.rstrip("/")


def _exists(files: fs.FileSystem, path: str) -> bool:
    from pyarrow import fs

    return bool(files.get_file_info(path).type != fs.FileType.NotFound)
