"""What the memory-mapped files beside a table have in common, whatever they hold of a fragment: a header, and ids.

Legend: P passages of a fragment.
"""

from __future__ import annotations

import errno
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from diffretriever.artefacts.artefact import (
    HEADER,
    Artefact,
    DamagedError,
    header_in,
    headers_of,
    open_all,
    unless_damaged,
)
from diffretriever.artefacts.cache import HeldFolder
from diffretriever.index.table import PassageIndex, fragment_key, rows_written
from diffretriever.representations import offsets_of


class FragmentFiles(Protocol):
    """What is mapped of a fragment: as long as passages are in it."""

    @property
    def rows_P(self) -> np.ndarray:  # noqa: N802 (a tensor's name)
        """uint32 [P], ascending: each passage's place among the rows that the fragment was written with."""

    def __len__(self) -> int: ...


Files = TypeVar("Files", bound=FragmentFiles)

MOST_READ = 1 << 16
"""Bytes of files that are read rather than mapped: a system maps some 65,000 files into a process, no more."""

_LOG = logging.getLogger(__name__)

_opened: WeakValueDictionary[Path, Any] = WeakValueDictionary()
"""What is mapped of the cache's folders, which never change: versions of an index share what they have in common."""


class NoMoreMapsError(ValueError):
    """The system maps no more files into memory; the message says what to do."""


@dataclass(frozen=True)
class FileKind(Generic[Files]):
    """A kind of files that each fragment of an index can have, as an artefact.

    Attributes:
        name: of the folder beside the table that they lie in.
        version: of their format.
        open: maps those in a folder, as long as passages are in them; None where there are none of this format. It
            raises ValueError for files that do not fit together.
    """

    name: str
    version: int
    open: Callable[[Path], Files | None]

    def artefact(self, index: PassageIndex, fragment: Any) -> Artefact:
        """Return where a fragment's files lie."""
        return Artefact(index.uri, f"{self.name}/{fragment_key(fragment)}")

    @contextmanager
    def build(self, index: PassageIndex, fragment: Any) -> Iterator[Path]:
        """Give a folder to fill, which a fragment's files are if the block succeeds; others that cannot be used go."""
        artefact = self.artefact(index, fragment)
        if not self._is_usable(index, fragment):
            artefact.remove()
        with artefact.build() as folder:
            yield folder

    def _is_usable(self, index: PassageIndex, fragment: Any) -> bool:
        artefact = self.artefact(index, fragment)
        if artefact.is_local:
            files = unless_damaged(lambda: self.open_of(index, fragment))
            return files is not None and _hold_all(files, fragment)
        header = unless_damaged(artefact.header)
        return header is not None and header.get("format") == self.version

    def open_of(self, index: PassageIndex, fragment: Any) -> Files | None:
        """Map a fragment's files, fetched if need be; None where there are none of this format.

        Raises:
            DamagedError: they are not what was written.
        """
        artefact = self.artefact(index, fragment)
        held = artefact.open()
        return None if held is None else self.opened(held, fragment, is_local=artefact.is_local)

    def checked(self, index: PassageIndex, fragment: Any) -> Files | None:
        """Do what `open_of` does once all of the files have been read and compared with what was written.

        Sound files that a search passes over, as passages are left out of them, are None as well.
        """
        artefact = self.artefact(index, fragment)
        artefact.check()
        files = self.open_of(index, fragment)
        is_passed_over = files is not None and not _hold_all(files, fragment)
        return None if is_passed_over else files

    def remove_damaged(self, index: PassageIndex) -> None:
        """Read the files of all fragments, and remove those that are damaged: a line in the log names them."""
        for fragment in index.fragments():
            artefact = self.artefact(index, fragment)
            try:
                artefact.check()
                if artefact.is_local:
                    self.open_of(index, fragment)
            except DamagedError as error:
                _LOG.warning("%s: it is removed", error)
                artefact.remove()

    def opened(self, held: HeldFolder, fragment: Any, *, is_local: bool) -> Files | None:
        """Map the files of a fragment in a folder, and keep that for as long as they are used.

        Raises:
            DamagedError: they are not what was written.
        """
        if is_local:
            return self._map(held.folder, fragment)
        files: Files | None = _opened.get(held.folder)
        if files is None and (files := self._map(held.folder, fragment)) is not None:
            held.keep_for(files)
            _opened[held.folder] = files
        return files

    def _map(self, folder: Path, fragment: Any) -> Files | None:
        try:
            files = self.open(folder)
        except (DamagedError, NoMoreMapsError):
            raise
        except (OSError, ValueError, KeyError) as error:
            raise DamagedError(f"{folder}: {error}") from error
        if files is not None and (files.rows_P[-1:] >= fragment.physical_rows).any():
            raise DamagedError(f"{folder}: there are rows beyond those of the fragment")
        return files


def with_files(index: PassageIndex, kind: FileKind[Files]) -> tuple[list[tuple[Any, Files]], list[Any]]:
    """Return the fragments of an index version that have files, with those, and the fragments that have none.

    Damaged files count as none, and a line in the log names them.

    Raises:
        ValueError: files do not fit into the cache for those of object stores, or the system maps no more.
    """
    fragments = index.fragments()
    artefacts = [kind.artefact(index, fragment) for fragment in fragments]
    headers = headers_of(artefacts)
    wanted = [_is_useful(header, kind, f) for f, header in zip(fragments, headers, strict=True)]
    held = iter(open_all([artefact for artefact, is_wanted in zip(artefacts, wanted, strict=True) if is_wanted]))
    found: list[tuple[Any, Files]] = []
    without: list[Any] = []
    for fragment, artefact, is_wanted in zip(fragments, artefacts, wanted, strict=True):
        folder = next(held) if is_wanted else None
        files = None if folder is None else _opened_of(kind, folder, fragment, artefact)
        if files is None or not _hold_all(files, fragment):
            without.append(fragment)
        else:
            found.append((fragment, files))
    return found, without


def _opened_of(kind: FileKind[Files], held: HeldFolder, fragment: Any, artefact: Artefact) -> Files | None:
    return unless_damaged(lambda: kind.opened(held, fragment, is_local=artefact.is_local))


def _hold_all(files: FragmentFiles, fragment: Any) -> bool:
    """Return whether no passage of a fragment is left out of its files.

    Their numbers do not tell where files were made after a deletion and an older version was restored since: other
    passages may have been deleted from that.
    """
    if len(files) >= fragment.physical_rows:
        return True
    addresses = fragment.scanner(columns=[], with_row_address=True).to_table().column("_rowaddr").to_numpy()
    return bool(np.isin(rows_written(addresses), files.rows_P, assume_unique=True).all())


def lacking(index: PassageIndex, kind: FileKind[Files]) -> list[Any]:
    """Return the fragments of an index version that have no files; of an object store, nothing is fetched for it."""
    fragments = index.fragments()
    artefacts = [kind.artefact(index, fragment) for fragment in fragments]
    if all(artefact.is_local for artefact in artefacts):
        return with_files(index, kind)[1]
    pairs = zip(fragments, headers_of(artefacts), strict=True)
    return [fragment for fragment, header in pairs if not _is_useful(header, kind, fragment)]


def _is_useful(header: dict[str, int] | None, kind: FileKind[Any], fragment: Any) -> bool:
    # Files made after a deletion lack rows that a reader of an older version still sees.
    rows = fragment.count_rows()
    return header is not None and header.get("format") == kind.version and header.get("passages", rows) >= rows


def read_header(folder: Path, version: int) -> dict[str, int] | None:
    """Return the header that `write_header` left; None where there is none, or one of another version."""
    header = header_in(folder)
    return header if header is not None and header.get("format") == version else None


def write_header(folder: Path, version: int, **values: int) -> None:
    """Write the header of files of this version, which the artefact's listing takes in."""
    (folder / HEADER).write_text(json.dumps({"format": version, **values}), "utf-8")


def write_arrays(
    folder: Path, dtypes: Mapping[str, type[Any]], parts: Iterable[Mapping[str, np.ndarray]]
) -> Counter[str]:
    """Write a file `NAME.bin` for each name: the arrays of that name in all parts, one after the other, in its dtype.

    Returns:
        How many rows each file has.
    """
    rows = Counter[str]()
    with ExitStack() as opened:
        streams = {name: opened.enter_context((folder / f"{name}.bin").open("wb")) for name in dtypes}
        for arrays in parts:
            for name, array in arrays.items():
                streams[name].write(np.ascontiguousarray(array, dtypes[name]).tobytes())
                rows[name] += len(array)
    return rows


def letters_of(ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids as their letters, uint8 in UTF-8, and the number of them in each, int32 [P]."""
    encoded = [i.encode() for i in ids]
    return np.frombuffer(b"".join(encoded), np.uint8), np.array([len(i) for i in encoded], np.int32)


def check_rows(rows_P: np.ndarray) -> None:
    """Raise ValueError unless a fragment's rows ascend."""
    if not (rows_P[1:] > rows_P[:-1]).all():
        raise ValueError("the rows of the passages do not ascend")


def ids_from(letters: np.ndarray, lengths_P: np.ndarray) -> pa.LargeStringArray:
    """Return the ids that `letters_of` took apart, without copying their letters.

    Raises:
        ValueError: letters and lengths do not fit together.
    """
    if (lengths_P < 0).any() or lengths_P.sum(dtype=np.int64) != len(letters):
        raise ValueError("the ids and their lengths do not fit together")
    return pa.LargeStringArray.from_buffers(len(lengths_P), pa.py_buffer(offsets_of(lengths_P)), pa.py_buffer(letters))


def load_array(file: Path) -> np.ndarray:
    """Return the array in an `.npy` file, mapped where it is large.

    Raises:
        OSError: it cannot be opened.
        ValueError: its header is damaged, or the file is cut short.
    """
    is_small = file.stat().st_size <= MOST_READ
    try:
        # As a plain array: every slice of a memmap object costs microseconds.
        return _read_only(np.load(file)) if is_small else np.load(file, mmap_mode="r").view(np.ndarray)
    except OSError:
        raise
    except Exception as error:
        # NumPy reads the header as Python source, and passes on what that raises: TokenError, SyntaxError, EOFError.
        raise ValueError(f"{file.name} cannot be read ({type(error).__name__}: {error})") from error


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return an array that cannot be written to, as mapped ones: kernels are compiled for one of the two."""
    array.flags.writeable = False
    return array


def numbers_in(file: Path, dtype: type) -> np.ndarray:
    """Return the numbers in a file, read into memory.

    Raises:
        ValueError: the file is no whole number of them.
    """
    _check_whole(file, dtype)
    return _read_only(np.fromfile(file, dtype))


def _check_whole(file: Path, dtype: type) -> None:
    if file.stat().st_size % np.dtype(dtype).itemsize:
        raise ValueError(f"{file.name} is cut short")


def mapped(file: Path, dtype: type) -> np.ndarray:
    """Return the numbers in a file, mapped into memory where they are many.

    Raises:
        NoMoreMapsError: the system maps no more files.
        ValueError: the file is no whole number of them.
    """
    _check_whole(file, dtype)
    if file.stat().st_size <= MOST_READ:
        return numbers_in(file, dtype)
    # As a plain array: every slice of a memmap object costs microseconds.
    try:
        return np.asarray(np.memmap(file, dtype, "r"))
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise NoMoreMapsError(
            f"{file}: the system maps no more files into memory (sysctl vm.max_map_count): join the index's fragments "
            "with `python jobs/maintain_index.py --compact`, and run jobs/accelerate_index.py again"
        ) from error
