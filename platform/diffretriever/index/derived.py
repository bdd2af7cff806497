"""A folder of files derived from an index, such as 8-bit codes: used in place on a disk, fetched from a store.

The folder's listing contains the size and SHA-256 of each file, and is written last. Opening a folder compares sizes;
fetching it from an object store, or verifying the index, compares contents. On a disk the folder appears by a rename.
In a store, several writers can write at once, so the files are in a subfolder named after their content.

    codes/KEY/listing.json          {"files": {"codes.bin": {"bytes": …, "sha256": …}, …}, "digest": …}
    codes/KEY/codes.bin              on a disk
    codes/KEY/DIGEST/codes.bin       in a store; DIGEST of the listing, which also names the folder in the local cache
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import NonNegativeInt, field_validator

from diffretriever.core.files import (
    exists,
    fetch_file,
    file_digest,
    filesystem_of,
    is_local,
    put_file,
    read_bytes,
    remove,
    sync_folder,
    sync_path,
    whole_folder,
    write_bytes,
)
from diffretriever.core.full_disk import full_disk
from diffretriever.index.local_cache import LocalFolder, shared_cache
from diffretriever.schemas.base import Model

T = TypeVar("T")
Item = TypeVar("Item")

LISTING = "listing.json"
_MOST_READ = 1 << 16
"""Files up to this size are read, not mapped: a process can map only some 65,000 files."""
_AT_ONCE = 16
"""Folders to fetch in parallel: a single stream does not saturate the network."""
_LOG = logging.getLogger(__name__)


class DamagedError(ValueError):
    """A file differs from what was written; the message names both."""


class NoMoreMapsError(ValueError):
    """The process cannot map more files into memory; the message suggests a fix."""


class ListedFile(Model):
    """A file of a folder."""

    bytes: NonNegativeInt
    sha256: str


class Listing(Model):
    """The files of a folder, by name."""

    files: dict[str, ListedFile]

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, ListedFile]) -> dict[str, ListedFile]:
        if any(Path(name).name != name for name in files):
            raise ValueError("a file is outside of the folder")
        return files

    @property
    def digest(self) -> str:
        """Identifies the content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]

    @property
    def bytes(self) -> int:
        """Size of all files, including the listing."""
        return sum(file.bytes for file in self.files.values()) + len(self.to_bytes())

    @classmethod
    def seal(cls, folder: Path) -> Listing:
        """Write the listing of a folder's files, and sync all of it to disk."""
        paths = sorted(folder.iterdir())
        assert all(path.is_file() for path in paths), "listed folders have no subfolders"
        files = {file.name: ListedFile(bytes=file.stat().st_size, sha256=file_digest(file)) for file in paths}
        listing = cls(files=files)
        (folder / LISTING).write_bytes(listing.to_bytes())
        sync_folder(folder)
        return listing

    def to_bytes(self) -> builtins.bytes:
        """Return the listing as JSON with its digest, for `parse`."""
        return json.dumps({**self.model_dump(), "digest": self.digest}).encode()

    @classmethod
    def parse(cls, data: builtins.bytes, location: str) -> Listing:
        """Read the output of `to_bytes`; raise DamagedError for anything else."""
        try:
            values = json.loads(data)
            digest = values.pop("digest")
            listing = cls.model_validate(values)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise DamagedError(f"{location}: {LISTING} is damaged") from error
        if digest != listing.digest:
            raise DamagedError(f"{location}: {LISTING} is damaged")
        return listing

    def check_sizes(self, folder: Path) -> None:
        """Raise DamagedError if a file is missing or has another size. Reads no file."""
        for name, listed in self.files.items():
            with _file_of(folder, name):
                size = (folder / name).stat().st_size
            if size != listed.bytes:
                raise DamagedError(f"{folder}: {name} has {size:,} bytes instead of {listed.bytes:,}")

    def check_contents(self, folder: str | Path, location: str | Path) -> None:
        """Read all files in a folder or store; raise DamagedError, which names `location`, if one has changed."""
        for name, listed in self.files.items():
            with _file_of(location, name):
                digest = file_digest(f"{folder}/{name}")
            if digest != listed.sha256:
                raise DamagedError(f"{location}: {name} is damaged")


@dataclass(frozen=True)
class DerivedFolder:
    """A folder of derived files, which may not exist: `name`, such as `codes/KEY`, in the index at `uri`."""

    uri: str
    name: str

    @property
    def is_local(self) -> bool:
        """Whether the files are used in place."""
        return is_local(self.uri)

    @property
    def location(self) -> str:
        """Path or URI of the folder."""
        return f"{self.uri.rstrip('/')}/{self.name}"

    @property
    def path(self) -> Path:
        """Path of the folder in a local index."""
        assert self.is_local, "a folder on an object store has no path"
        return Path(self.location)

    def below(self, name: str) -> DerivedFolder:
        """Return a subfolder with its own listing; it is removed with this folder."""
        return DerivedFolder(self.uri, f"{self.name}/{name}")

    def size(self) -> int | None:
        """Return the bytes of all files; None if the folder does not exist."""
        listing = self._listing()
        return None if listing is None else listing.bytes

    def files(self) -> dict[str, int] | None:
        """Return the bytes of each file without fetching it; None if the folder does not exist."""
        listing = self._listing()
        return None if listing is None else {name: file.bytes for name, file in listing.files.items()}

    def open(self) -> LocalFolder | None:
        """Return the folder on this node, fetched if needed; None if it does not exist.

        Raises:
            DamagedError: a file is missing, has the wrong size, or its fetched content differs.
            ValueError: the files do not fit into the cache.
        """
        listing = self._listing()
        if listing is None:
            return None
        if self.is_local:
            listing.check_sizes(self.path)
            return LocalFolder(self.path)
        try:
            return self._fetched(listing)
        except FileNotFoundError as error:
            # Another process removed or replaced the files after this one read the listing.
            _listing_on_store.cache_clear()
            newer = self._listing()
            if newer is None or newer == listing:
                raise DamagedError(f"{self.location}: a listed file is missing ({error})") from error
            return self._fetched(newer)

    def check(self) -> None:
        """Compare all files of the folder, if it exists, with the listing; raise DamagedError."""
        listing = self._listing()
        if listing is None:
            return
        if self.is_local:
            listing.check_contents(self.path, self.path)
            return
        listing.check_contents(f"{self.location}/{listing.digest}", self.location)
        cached = shared_cache().existing(listing.digest, listing.bytes)
        if cached is not None:
            try:
                listing.check_contents(cached.folder, cached.folder)
            except DamagedError:
                # The files in the store are intact: the next search fetches them.
                shared_cache().discard(cached)
                raise

    @contextmanager
    def build(self) -> Iterator[Path]:
        """Yield an empty folder to fill, which replaces this one if the block succeeds."""
        if self.is_local:
            with whole_folder(self.path) as folder:
                yield folder
                Listing.seal(folder)
                shutil.rmtree(self.path, ignore_errors=True)
            sync_path(self.path.parent.parent)
            return
        root = shared_cache().root
        root.mkdir(parents=True, exist_ok=True)
        # The cache removes such folders of killed processes after a day.
        with tempfile.TemporaryDirectory(dir=root, prefix=".", suffix=".tmp") as name:
            folder = Path(name)
            yield folder
            listing = Listing.seal(folder)
            for file in listing.files:
                put_file(folder / file, f"{self.location}/{listing.digest}/{file}")
            write_bytes(f"{self.location}/{LISTING}", listing.to_bytes())
        _listing_on_store.cache_clear()

    def remove(self) -> None:
        """Remove the folder, if it exists."""
        if exists(self.location):
            # Remove the listing first: without it the folder does not exist, even after a crash.
            remove(f"{self.location}/{LISTING}")
            remove(self.location)
        _listing_on_store.cache_clear()

    def _listing(self) -> Listing | None:
        if not self.is_local:
            try:
                return _listing_on_store(self.location)
            except FileNotFoundError:
                return None
        return _listing_in(self.path) if self.path.is_dir() else None

    def _fetched(self, listing: Listing) -> LocalFolder:
        def fetch(folder: Path) -> None:
            for name in listing.files:
                fetch_file(f"{self.location}/{listing.digest}/{name}", folder / name)
            (folder / LISTING).write_bytes(listing.to_bytes())
            listing.check_contents(folder, self.location)

        cache = shared_cache()
        cached = cache.get(listing.digest, listing.bytes, fetch)
        try:
            listing.check_sizes(cached.folder)
        except DamagedError as error:
            _LOG.warning("%s: fetching it again", error)
            cache.discard(cached)
            cached = cache.get(listing.digest, listing.bytes, fetch)
        return cached


@contextmanager
def _file_of(location: str | Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DamagedError(f"{location}: {name} cannot be read ({error.strerror})") from error


def _listing_in(folder: Path) -> Listing:
    with _file_of(folder, LISTING):
        return Listing.parse((folder / LISTING).read_bytes(), str(folder))


@lru_cache(maxsize=1 << 17)
def _listing_on_store(location: str) -> Listing:
    # Listings never change, so a new version reads only those of new fragments.
    return Listing.parse(read_bytes(f"{location}/{LISTING}"), location)


def for_all(uri: str, items: Sequence[Item], function: Callable[[Item], T | None]) -> list[T | None]:
    """Call `function` for each item, in parallel if the index is in a store; None where files are damaged."""
    calls = [partial(function, item) for item in items]
    if is_local(uri):
        return list(map(unless_damaged, calls))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="derived-files") as threads:
        return list(threads.map(unless_damaged, calls))


def unless_damaged(function: Callable[[], T | None]) -> T | None:
    """Return the result of `function`; log and return None if files are damaged or the disk is full."""
    try:
        return function()
    except DamagedError as error:
        _LOG.warning("%s: search skips it; run jobs/accelerate_index.py to rebuild it", error)
    except OSError as error:
        if full_disk(error) is None:
            raise
        _LOG.warning("%s: search continues without these files, slower", error)
    return None


def folders_in(uri: str, name: str) -> list[str]:
    """Return the names of the subfolders of `name` in the index at `uri`, including temporary ones."""
    from pyarrow import fs

    filesystem, path = filesystem_of(f"{uri.rstrip('/')}/{name}")
    entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]


def write_arrays(folder: Path, dtypes: Mapping[str, type[Any]], parts: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Write the parts of each array to a file `NAME.bin`."""
    with ExitStack() as opened:
        streams = {name: opened.enter_context((folder / f"{name}.bin").open("wb")) for name in dtypes}
        for arrays in parts:
            for name, array in arrays.items():
                streams[name].write(np.ascontiguousarray(array, dtypes[name]).tobytes())


def read_arrays(folder: Path, dtypes: Mapping[str, type[Any]]) -> dict[str, np.ndarray]:
    """Return the arrays in files `NAME.bin`, read-only; large ones are memory-mapped."""
    return {name: _mapped(folder / f"{name}.bin", dtype) for name, dtype in dtypes.items()}


def read_array(file: Path, dtype: type[Any]) -> np.ndarray:
    """Read an array into memory, read-only, because kernels are compiled for read-only arrays."""
    array = np.fromfile(file, dtype)
    array.flags.writeable = False
    return array


def _mapped(file: Path, dtype: type[Any]) -> np.ndarray:
    if file.stat().st_size <= _MOST_READ:
        return read_array(file, dtype)
    try:
        # Slices of a memmap object are microseconds slower than those of a plain array.
        return np.memmap(file, dtype, "r").view(np.ndarray)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise NoMoreMapsError(
            f"{file}: too many memory-mapped files (sysctl vm.max_map_count): join the index's fragments "
            "with `python jobs/maintain_index.py --compact`, and run jobs/accelerate_index.py again"
        ) from error
