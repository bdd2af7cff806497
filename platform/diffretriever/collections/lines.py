"""Reading a text file line by line in bounded memory, plain or gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

_BOM = b"\xef\xbb\xbf"
_SKIP_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file to read, and its name as shown to a user."""

    path: Path
    shown: str

    @classmethod
    def at(cls, path: Path) -> TextFile:
        """A file shown by its own path."""
        return cls(path, str(path))


class Line(NamedTuple):
    """A line without its end. `number` counts from 1; `complete` is False where `data` was cut."""

    number: int
    data: bytes
    complete: bool


def read_lines(file: TextFile, limit: int) -> Iterator[Line]:
    """Yield the lines that are not blank, those of more than `limit` bytes cut to it.

    Lines end in LF or CRLF; a byte order mark at the start is left out; `.gz` is decompressed.

    Raises:
        ValueError: The gzip data are damaged.
    """
    number = 0
    try:
        with _open(file.path) as stream:
            while chunk := stream.readline(limit + len(_BOM) + len(b"\r\n")):
                number += 1
                data = _content(chunk, first=number == 1)
                complete = len(data) <= limit
                if not complete and not chunk.endswith(b"\n"):
                    _skip_to_next_line(stream)
                if data.strip():
                    yield Line(number, data[:limit], complete)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file.shown}: damaged gzip data after line {number}: {error}") from error


def find_file(folder: Path, name: str, shown: str) -> TextFile | None:
    """Find `name` in a folder, or else `name.gz`."""
    for candidate in (name, f"{name}.gz"):
        if (folder / candidate).is_file():
            return TextFile(folder / candidate, f"{shown}/{candidate}")
    return None


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def _content(chunk: bytes, *, first: bool) -> bytes:
    if first:
        chunk = chunk.removeprefix(_BOM)
    if not chunk.endswith(b"\n"):
        return chunk
    return chunk[:-1].removesuffix(b"\r")


def _skip_to_next_line(stream: BinaryIO | gzip.GzipFile) -> None:
    while chunk := stream.readline(_SKIP_BYTES):
        if chunk.endswith(b"\n"):
            return
