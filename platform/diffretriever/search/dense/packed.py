"""The packed vectors of a compressed index, in memory-mapped files beside the table: nothing is decoded in advance.

They hold what the table's column `codes` holds, so that a compressed index stays as small as it is, and a search need
not read the table, which may lie on an object store. As with all such files, deletions are looked up in the table.

Legend: N vectors of a fragment, W bytes of a packed vector, P passages of a fragment, C chosen passages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from diffretriever.index.mapped_files import (
    FileKind,
    check_rows,
    ids_from,
    letters_of,
    mapped,
    read_header,
    with_files,
    write_arrays,
    write_header,
)
from diffretriever.index.table import PassageIndex, rows_written
from diffretriever.index.vectors import read_packed
from diffretriever.ragged import offsets_of

FORMAT = 1
"""Of these files."""
_FILES = {"packed": np.uint8, "counts": np.int32, "rows": np.uint32, "ids": np.uint8, "id_lengths": np.int32}
_BUILD_ROWS = 4096


@dataclass(frozen=True)
class FragmentPacked:
    """The files of a fragment.

    Attributes:
        packed_NW: uint8 [N, W], memory-mapped.
        offsets: int64 [P + 1]; passage i owns vectors offsets[i] to offsets[i + 1].
        rows_P: uint32 [P], ascending: the passage's place among the rows that the fragment was written with.
        ids: P passage ids, memory-mapped.
    """

    packed_NW: np.ndarray
    offsets: np.ndarray
    rows_P: np.ndarray
    ids: pa.LargeStringArray

    def __len__(self) -> int:
        return len(self.rows_P)

    @classmethod
    def open(cls, folder: Path) -> FragmentPacked | None:
        """Map the files in `folder`; None where there are none, or of another format.

        Raises:
            ValueError: they do not fit together.
        """
        header = read_header(folder, FORMAT)
        if header is None:
            return None
        arrays = {name: mapped(folder / f"{name}.bin", dtype) for name, dtype in _FILES.items()}
        offsets, passages, width = offsets_of(arrays["counts"]), header["passages"], header["width"]
        lengths_P, letters = arrays["id_lengths"], arrays["ids"]
        sizes = (len(arrays["counts"]), len(arrays["rows"]), len(lengths_P), len(arrays["packed"]), len(letters))
        wanted = (passages, passages, passages, offsets[-1] * width, offsets_of(lengths_P)[-1])
        if sizes != wanted or (arrays["counts"] < 0).any():
            raise ValueError("the files do not fit together")
        check_rows(arrays["rows"])
        return cls(arrays["packed"].reshape(-1, width), offsets, arrays["rows"], ids_from(letters, lengths_P))

    @classmethod
    def write(cls, folder: Path, batches: Iterable[pa.RecordBatch], width: int) -> None:
        """Write a fragment's files into an empty folder from a stream of batches with `id`, `codes` and `_rowaddr`."""
        rows = write_arrays(folder, _FILES, map(_arrays_of, batches))
        write_header(folder, FORMAT, width=width, passages=rows["rows"])


def _arrays_of(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    packed_NW, offsets = read_packed(batch)
    letters, lengths_P = letters_of(batch.column("id").to_pylist())
    rows_P = rows_written(batch.column("_rowaddr").to_numpy())
    return {"packed": packed_NW, "counts": np.diff(offsets), "rows": rows_P, "ids": letters, "id_lengths": lengths_P}


PACKED = FileKind("packed", FORMAT, FragmentPacked.open)
"""The packed vectors of a fragment, as an artefact of the index."""


@dataclass(frozen=True)
class PackedSegment:
    """A fragment's packed vectors, and which of its passages are still in the table."""

    packed: FragmentPacked
    numbers_P: np.ndarray
    """int32 [P], the passages' numbers in the order of the index; `NO_NUMBER` for those deleted since."""


def open_packed(index: PassageIndex) -> tuple[list[PackedSegment], list[Any]]:
    """Return what a version of a compressed index has mapped, and the fragments that have no such files."""
    found, without = with_files(index, PACKED)
    order = index.order
    return [PackedSegment(packed, order.numbers_in(fragment, packed.rows_P)) for fragment, packed in found], without


def build_fragment_packed(index: PassageIndex, fragment: Any) -> None:
    """Make the packed vectors of one fragment."""
    assert index.manifest.codec is not None, "the index is compressed"
    batches = index.fragment_batches(fragment, ["id", "codes"], _BUILD_ROWS)
    with PACKED.build(index, fragment) as folder:
        FragmentPacked.write(folder, batches, index.manifest.codec.width)
