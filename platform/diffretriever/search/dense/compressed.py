"""Exact search of a compressed index: approximate codec scores for all passages, exact scores for the candidates.

Codec scores differ from scores of the stored vectors only by fp16 rounding and summation order. The bound is tight,
so few passages are decoded. Memory-mapped files contain the same encoded vectors as the table's column `codes`, so a
search need not read a table on an object store.

Legend: Q queries, P passages of a batch or a fragment, C chosen passages, M query vectors, N vectors, W bytes of a
packed vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from diffretriever.index.derived import read_arrays, write_arrays
from diffretriever.index.fragment_files import FileKind, with_files
from diffretriever.index.table import PassageIndex, rows_written
from diffretriever.index.vectors import codec_of, read_packed
from diffretriever.schemas.mode import Way
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.hits import NO_NUMBER, Hits, TopK
from diffretriever.vectors.maxsim import FP32_ROUNDING, Vectors, add_exact, contenders
from diffretriever.vectors.representations import Representations, offsets_of, rows_of

_FILES = {"packed": np.uint8, "counts": np.int32, "rows": np.uint32}
_BUILD_ROWS = 4096
_COLUMNS = ("codes",)
_RELATIVE_ERROR = 2.0**-11 + 2.0**-13 + FP32_ROUNDING
"""Error of a score, relative to a query vector's length: fp16 rounding changes a unit vector by 2^-11 of its length.
2^-13 covers subnormal fp16 numbers (2^-25 each) and the summation of table entries."""


@dataclass(frozen=True)
class FragmentPacked:
    """The encoded vectors of a fragment.

    Attributes:
        packed_NW: uint8 [N, W], memory-mapped.
        offsets: int64 [P + 1]; passage i owns vectors offsets[i] to offsets[i + 1].
        rows_P: uint32 [P], ascending row of each passage in the fragment as written.
    """

    packed_NW: np.ndarray
    offsets: np.ndarray
    rows_P: np.ndarray

    def __len__(self) -> int:
        return len(self.rows_P)

    @classmethod
    def open(cls, folder: Path) -> FragmentPacked:
        """Map the files in `folder`; raises ValueError if they are inconsistent."""
        arrays = read_arrays(folder, _FILES)
        offsets = offsets_of(arrays["counts"])
        width = len(arrays["packed"]) // max(1, offsets[-1])
        sizes = len(arrays["counts"]), len(arrays["packed"])
        if sizes != (len(arrays["rows"]), offsets[-1] * width) or (arrays["counts"] < 0).any():
            raise ValueError("the files do not fit together")
        return cls(arrays["packed"].reshape(-1, width), offsets, arrays["rows"])


PACKED = FileKind("packed", FragmentPacked.open)
"""The packed vectors of a fragment, as derived files of the index."""


def open_packed(index: PassageIndex) -> tuple[list[tuple[FragmentPacked, np.ndarray]], list[Any]]:
    """Return mapped vectors and passage numbers (int32 [P]) by fragment, and the fragments without files.

    Deleted passages have `NO_NUMBER`.
    """
    opened, without = with_files(index, PACKED)
    return [(packed, index.order.numbers_in(fragment, packed.rows_P)) for fragment, packed in opened], without


def build_fragment_packed(index: PassageIndex, fragment: Any) -> None:
    """Write the encoded vectors of one fragment."""
    with PACKED.folder_of(index, fragment).build() as folder:
        batches = index.fragment_batches(fragment, _COLUMNS, _BUILD_ROWS)
        write_arrays(folder, _FILES, map(_arrays_of, batches))


def _arrays_of(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    packed_NW, offsets = read_packed(batch)
    rows_P = rows_written(batch.column("_rowaddr").to_numpy())
    return {"packed": packed_NW, "counts": np.diff(offsets), "rows": rows_P}


class CompressedScan(EncodedSearch):
    """Scores every passage by its encoded vectors; all queries share one pass.

    Reads fragments without mapped files from the table.
    """

    way: ClassVar[Way] = "compressed"

    def __init__(
        self,
        index: PassageIndex,
        stream: StreamingScan,
        mapped: Sequence[tuple[FragmentPacked, np.ndarray]],
        without: Sequence[Any],
    ) -> None:
        """Search a compressed index; `mapped` and `without` come from `open_packed`."""
        self._index = index
        self._mapped, self._without = mapped, without
        self._stream = stream
        self._codec = codec_of(index.uri, index.manifest)

    def search(self, queries: Representations, k: int) -> Hits:
        """Return the k best passages of each query, exactly as `StreamingScan` does."""
        order = self._stream.order
        best = TopK(len(queries), k, order.passages)
        rows = self._stream.batch_rows(queries)
        for packed, numbers_P in self._mapped:
            for start in range(0, len(packed), rows):
                offsets = packed.offsets[start : start + rows + 1]
                packed_NW = packed.packed_NW[offsets[0] : offsets[-1]]
                self._add(packed_NW, offsets - offsets[0], numbers_P[start : start + rows], queries, best)
        for fragment in self._without:
            for batch in self._index.fragment_batches(fragment, _COLUMNS, rows):
                self._add(*read_packed(batch), order.numbers(batch.column("_rowaddr").to_numpy()), queries, best)
        return best.results()

    def _add(
        self,
        packed_NW: np.ndarray,
        offsets: np.ndarray,
        numbers_P: np.ndarray,
        queries: Representations,
        best: TopK,
    ) -> None:
        query_vectors = Vectors(queries.vectors_MH.astype(np.float32), queries.offsets)
        scores_QP = self._codec.maxsim(queries.vectors_MH, queries.offsets, packed_NW, offsets)
        scores_QP[:, numbers_P == NO_NUMBER] = -np.inf
        chosen = contenders(query_vectors, scores_QP, _RELATIVE_ERROR, best)
        needed_P = np.unique(np.concatenate([*chosen, np.empty(0, np.int64)]))
        rows_N, needed_offsets = rows_of(offsets, needed_P)
        decoded_NH = self._codec.decode(packed_NW[rows_N]).astype(np.float16)
        rows = [np.searchsorted(needed_P, chosen_C) for chosen_C in chosen]
        add_exact(query_vectors, Vectors(decoded_NH, needed_offsets), numbers_P[needed_P], rows, best)
