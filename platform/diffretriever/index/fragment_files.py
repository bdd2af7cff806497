"""Derived files of each fragment, such as its 8-bit codes, by kind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from diffretriever.index.derived import DamagedError, DerivedFolder, NoMoreMapsError, for_all
from diffretriever.index.table import PassageIndex, fragment_key, rows_written

_LOG = logging.getLogger(__name__)
_ROW_BYTES = 4
"""Bytes of a passage's row number in `rows_file`."""


class FragmentFiles(Protocol):
    """Open derived files of a fragment."""

    @property
    def rows_P(self) -> np.ndarray:  # noqa: N802 (a tensor's name)
        """uint32 [P], ascending: row of each passage in the fragment as it was written."""

    def __len__(self) -> int: ...


Files = TypeVar("Files", bound=FragmentFiles)


@dataclass(frozen=True)
class FileKind(Generic[Files]):
    """A kind of derived files."""

    name: str
    """Folder of the index that contains one folder per fragment."""
    open: Callable[[Path], Files]
    """Maps the files in a folder; raises ValueError if they are inconsistent."""
    rows_file: str = "rows.bin"
    """File of `FragmentFiles.rows_P`."""

    def folder_of(self, index: PassageIndex, fragment: Any) -> DerivedFolder:
        """Return the folder of a fragment's files."""
        return DerivedFolder(index.uri, f"{self.name}/{fragment_key(fragment)}")

    def open_of(self, index: PassageIndex, fragment: Any) -> Files | None:
        """Map a fragment's files, fetched if needed; None if there are none. Raises DamagedError."""
        folder = self.folder_of(index, fragment).open()
        if folder is None:
            return None
        try:
            files = self.open(folder.folder)
        except (DamagedError, NoMoreMapsError):
            raise
        except (OSError, ValueError, KeyError) as error:
            raise DamagedError(f"{folder.folder}: {error}") from error
        rows_P = files.rows_P
        if not (rows_P[1:] > rows_P[:-1]).all() or (rows_P[-1:] >= fragment.physical_rows).any():
            raise DamagedError(f"{folder.folder}: rows are not ascending, or exceed the fragment")
        folder.keep_for(files)
        return files

    def check(self, index: PassageIndex, fragment: Any) -> None:
        """Verify the files of a fragment, if there are some; raises DamagedError."""
        self.folder_of(index, fragment).check()
        self.open_of(index, fragment)

    def remove_damaged(self, index: PassageIndex) -> None:
        """Verify the files of all fragments; remove damaged ones and log their names."""
        for fragment in index.fragments():
            folder = self.folder_of(index, fragment)
            try:
                folder.check()
                if folder.is_local:
                    self.open_of(index, fragment)
            except DamagedError as error:
                _LOG.warning("%s: removing it", error)
                folder.remove()


def with_files(index: PassageIndex, kind: FileKind[Files]) -> tuple[list[tuple[Any, Files]], list[Any]]:
    """Return the fragments of an index version with their files, and the fragments without.

    Damaged files count as missing, and are logged.
    """
    fragments = index.fragments()
    opened = zip(fragments, for_all(index.uri, fragments, partial(kind.open_of, index)), strict=True)
    pairs = [(fragment, files) for fragment, files in opened if files is not None and _has_all(files, fragment)]
    numbers = {fragment.fragment_id for fragment, _ in pairs}
    return pairs, [fragment for fragment in fragments if fragment.fragment_id not in numbers]


def _has_all(files: FragmentFiles, fragment: Any) -> bool:
    # An older version has passages that were deleted since.
    if len(files) >= fragment.physical_rows:
        return True
    addresses = fragment.scanner(columns=[], with_row_address=True).to_table().column("_rowaddr").to_numpy()
    return bool(np.isin(rows_written(addresses), files.rows_P, assume_unique=True).all())


def lacking(index: PassageIndex, kind: FileKind[Files]) -> list[Any]:
    """Return the fragments of an index version without files, or whose files lack passages.

    Fetches files from a store only if they lack rows of the fragment as written.
    """
    fragments = index.fragments()
    complete = for_all(index.uri, fragments, partial(_is_complete, index, kind))
    return [fragment for fragment, is_complete in zip(fragments, complete, strict=True) if not is_complete]


def _is_complete(index: PassageIndex, kind: FileKind[Files], fragment: Any) -> bool:
    folder = kind.folder_of(index, fragment)
    if not folder.is_local:
        sizes = folder.files()
        if sizes is None or sizes[kind.rows_file] >= fragment.physical_rows * _ROW_BYTES:
            return sizes is not None
    # After a restore, the rows without files can be live again, so a number of passages is not enough.
    files = kind.open_of(index, fragment)
    return files is not None and _has_all(files, fragment)
