"""What the memory-mapped files beside a table have in common, whatever they hold of a fragment: a header, and ids.

Legend: P passages of a fragment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from diffretriever.index.table import PassageIndex
from diffretriever.ragged import offsets_of

Files = TypeVar("Files", bound=Sized)


def with_files(
    index: PassageIndex, open_files: Callable[[Any], Files | None]
) -> tuple[list[tuple[Any, Files]], list[Any]]:
    """Return the fragments of an index version that have files, with those, and the fragments that have none.

    `open_files` gives a fragment's files, as long as passages are in them, or None.
    """
    found: list[tuple[Any, Files]] = []
    without: list[Any] = []
    for fragment in index.fragments():
        files = open_files(fragment)
        # Files made after a deletion lack rows that a reader of an older version still sees.
        if files is None or len(files) < fragment.count_rows():
            without.append(fragment)
        else:
            found.append((fragment, files))
    return found, without


def read_header(folder: Path, version: int) -> dict[str, Any] | None:
    """Return the header that `write_header` left; None where there is none, or one of another version."""
    try:
        header: dict[str, Any] = json.loads((folder / "header.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    return header if header["format"] == version else None


def write_header(folder: Path, version: int, **values: int) -> None:
    """Write the header of files of this version."""
    (folder / "header.json").write_text(json.dumps({"format": version, **values}), "utf-8")


def letters_of(ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids as their letters, uint8 in UTF-8, and the number of them in each, int32 [P]."""
    encoded = [i.encode() for i in ids]
    return np.frombuffer(b"".join(encoded), np.uint8), np.array([len(i) for i in encoded], np.int32)


def ids_from(letters: np.ndarray, lengths_P: np.ndarray) -> pa.LargeStringArray:
    """Return the ids that `letters_of` took apart, without copying their letters."""
    return pa.LargeStringArray.from_buffers(len(lengths_P), pa.py_buffer(offsets_of(lengths_P)), pa.py_buffer(letters))
