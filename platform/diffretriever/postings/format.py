"""The files of a segment: plain `.npy` arrays that are mapped into memory, and a header that says what they hold.

Legend: D terms that occur, B blocks of 65,536 passages (the last may be smaller), P postings.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt, ValidationError

from diffretriever.kernels.postings import BLOCK_ROWS
from schemas.base import Model

_HEADER = "segment.json"
_CHECKSUM_BYTES = 1 << 24

DTYPES: dict[str, np.dtype[Any]] = {
    "terms": np.dtype(np.int32),
    "peaks": np.dtype(np.float32),
    "starts": np.dtype(np.uint32),
    "rows": np.dtype(np.uint16),
    "codes": np.dtype(np.uint8),
    "weights": np.dtype(np.float32),
}
"""The arrays by the name of their file.

`terms` [D] are the vocabulary entries that occur, ascending; `peaks` [D] their largest weights; `starts` [D, B + 1]
the first posting of each in each block, and its end. Of each posting, term by term and passage by passage, `rows` [P]
is the passage's row within its block, `codes` [P] the weight in 255ths of the term's peak, rounded up, and `weights`
[P] the weight itself. All but `weights`, which only passages near the top are looked up in, is read by every query
that has the term.
"""


class Header(Model):
    """What a segment's arrays hold."""

    version: Literal[1] = 1
    """Of this format."""
    vocab_size: PositiveInt
    """V, above every term."""
    passages: NonNegativeInt
    """N."""
    terms: NonNegativeInt
    """D."""
    postings: NonNegativeInt
    """P."""
    checksums: dict[str, int]
    """CRC-32 of the bytes of each array."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array."""
        starts = (self.terms, blocks_of(self.passages) + 1)
        shapes: dict[str, tuple[int, ...]] = {"terms": (self.terms,), "peaks": (self.terms,), "starts": starts}
        return shapes | dict.fromkeys(("rows", "codes", "weights"), (self.postings,))


def blocks_of(passages: int) -> int:
    """Return B."""
    return -(-passages // BLOCK_ROWS)


def array_file(folder: Path, name: str) -> Path:
    """Return where an array of `DTYPES` is."""
    return folder / f"{name}.npy"


def checksum(array: np.ndarray) -> int:
    """Return the CRC-32 of a contiguous array's bytes."""
    bytes_, value = array.reshape(-1).view(np.uint8), 0
    for start in range(0, len(bytes_), _CHECKSUM_BYTES):
        value = zlib.crc32(bytes_[start : start + _CHECKSUM_BYTES].data, value)
    return value


def write_header(folder: Path, header: Header) -> None:
    """Write the header of the segment in `folder`."""
    (folder / _HEADER).write_text(header.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_segment(folder: Path) -> tuple[Header, dict[str, np.ndarray]]:
    """Return the header and the arrays, mapped and read-only.

    Raises:
        ValueError: there is no segment, it is of another version, or an array is not what the header says.
    """
    try:
        header = Header.model_validate_json((folder / _HEADER).read_bytes())
    except OSError as error:
        raise ValueError(f"{folder} is no postings segment: {_HEADER} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise ValueError(f"{folder / _HEADER} is not of this format: build it again") from error
    return header, {name: _read_array(folder, name, header) for name in DTYPES}


def _read_array(folder: Path, name: str, header: Header) -> np.ndarray:
    file = array_file(folder, name)
    try:
        # The mapping's own class is dropped: each use of it would cost more than the bytes it gives.
        array = np.load(file, mmap_mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is missing or cut short: build the segment again") from error
    if array.dtype != DTYPES[name] or array.shape != header.shapes[name]:
        raise ValueError(f"{file} does not hold what {_HEADER} says: build the segment again")
    return array
