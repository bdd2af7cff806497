"""8-bit codes of each fragment's vectors, in memory-mapped files in the index folder.

Fragments are immutable, so these files are too; deletions are read from the table at search time. Codes retrieve
candidates, and a fp16 copy of the vectors rescores them, because Lance takes milliseconds to fetch a few. To save disk
space, store codes of mean vectors only; scores then come from the table.

Legend: N vectors of a fragment, P its passages, H hidden size, C chosen passages.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from diffretriever.index.damage import finite_rows
from diffretriever.index.derived import DerivedFolder, read_arrays, write_arrays
from diffretriever.index.fragment_files import FileKind, with_files
from diffretriever.index.table import PassageIndex, rows_written
from diffretriever.schemas.accelerate import CodeLayout
from diffretriever.vectors.kernels import encode
from diffretriever.vectors.maxsim import Codes
from diffretriever.vectors.representations import offsets_of, read_vectors

_MEANS = {"rows": np.uint32, "mean_codes": np.int8, "mean_scales": np.float32}
_SLOTS = {
    "codes": np.int8,
    "scales": np.float32,
    "counts": np.int32,
    "errors": np.float32,
    "norms": np.float32,
    "vectors": np.float16,
}
_FILES: Mapping[CodeLayout, Mapping[str, type]] = {
    "means": _MEANS,
    "vectors": {**_MEANS, **_SLOTS},
}
_BUILD_ROWS = 4096


@dataclass(frozen=True)
class Segment:
    """A fragment with its codes."""

    index: PassageIndex
    """The pinned index version of the fragment."""
    fragment: Any
    folder: DerivedFolder
    codes: FragmentCodes
    numbers_P: np.ndarray
    """int32 [P], numbers in the order of the index; `NO_NUMBER` for deleted passages."""


def open_segments(index: PassageIndex) -> tuple[list[Segment], list[Any]]:
    """Return the segments of an index version, and the fragments without codes."""
    opened, without = with_files(index, CODES)
    version = index.pinned()
    segments = [
        Segment(
            version, fragment, CODES.folder_of(index, fragment), codes, index.order.numbers_in(fragment, codes.rows_P)
        )
        for fragment, codes in opened
    ]
    return segments, without


def build_fragment_codes(index: PassageIndex, fragment: Any, layout: CodeLayout = "vectors") -> None:
    """Build the codes of one fragment.

    Raises:
        ValueError: a passage's vectors contain NaN or infinity.
    """
    files = _FILES[layout]
    batches = finite_rows(index.uri, index.fragment_batches(fragment, ["id", "reps"], _BUILD_ROWS))
    with CODES.folder_of(index, fragment).build() as folder:
        write_arrays(folder, files, (encode_batch(batch, files) for batch in batches))


@dataclass(frozen=True)
class SlotCodes:
    """The codes of all vectors of a fragment.

    Attributes:
        vectors: codes of N vectors, memory-mapped.
        errors_P: float32 [P], largest quantisation error of a passage's vectors (L2).
        norms_P: float32 [P], largest norm of a passage's vectors.
        copy_NH: float16 [N, H], the unquantised vectors, memory-mapped.
    """

    vectors: Codes
    errors_P: np.ndarray
    norms_P: np.ndarray
    copy_NH: np.ndarray


@dataclass(frozen=True)
class FragmentCodes:
    """The code files of a fragment.

    Attributes:
        means: codes of each passage's mean vector, memory-mapped.
        rows_P: uint32 [P], ascending row of each passage in the fragment as written.
        slots: codes of all vectors; None if only means are stored.
    """

    means: Codes
    rows_P: np.ndarray
    slots: SlotCodes | None

    def __len__(self) -> int:
        return len(self.rows_P)

    @classmethod
    def open(cls, folder: Path) -> FragmentCodes:
        """Map the files in `folder`; raises ValueError if they are inconsistent."""
        arrays = read_arrays(folder, _FILES[layout_of({file.name for file in folder.iterdir()})])
        hidden_size = len(arrays["mean_codes"]) // max(1, len(arrays["rows"]))
        _check_sizes(arrays, hidden_size)
        mean_offsets = np.arange(len(arrays["rows"]) + 1)
        means = Codes(arrays["mean_codes"].reshape(-1, hidden_size), arrays["mean_scales"], mean_offsets)
        if "codes" not in arrays:
            return cls(means, arrays["rows"], None)
        vectors = Codes(arrays["codes"].reshape(-1, hidden_size), arrays["scales"], offsets_of(arrays["counts"]))
        slots = SlotCodes(vectors, arrays["errors"], arrays["norms"], arrays["vectors"].reshape(-1, hidden_size))
        return cls(means, arrays["rows"], slots)


def layout_of(files: Container[str]) -> CodeLayout:
    """Return what codes store, given the names of their files."""
    return "vectors" if "codes.bin" in files else "means"


def _check_sizes(arrays: Mapping[str, np.ndarray], hidden_size: int) -> None:
    passages, counts_P = len(arrays["rows"]), arrays.get("counts", np.empty(0, np.int32))
    n_vectors = int(counts_P.sum(dtype=np.int64))
    sizes = dict.fromkeys(("counts", "errors", "norms", "mean_scales"), passages)
    sizes |= {"scales": n_vectors, "mean_codes": passages * hidden_size}
    sizes |= dict.fromkeys(("codes", "vectors"), n_vectors * hidden_size)
    wrong = [name for name, array in arrays.items() if len(array) != sizes.get(name, passages)]
    if wrong or (counts_P < 0).any():
        raise ValueError(f"the files do not fit together ({', '.join(wrong) or 'counts'})")


CODES = FileKind("codes", FragmentCodes.open)
"""The codes of a fragment, as derived files of the index."""


def encode_batch(batch: pa.RecordBatch, files: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a batch of passages by file name."""
    stored_NH, offsets = read_vectors(batch)
    vectors_NH = stored_NH.astype(np.float32)
    counts_P = np.diff(offsets)
    mean_codes, mean_scales, _ = quantise(
        _reduce(np.add, vectors_NH, offsets) / np.maximum(counts_P, 1).astype(np.float32)[:, None]
    )
    arrays = {
        "rows": rows_written(batch.column("_rowaddr").to_numpy()),
        "mean_codes": mean_codes,
        "mean_scales": mean_scales,
    }
    if "codes" in files:
        codes, scales, errors_N = quantise(vectors_NH)
        arrays |= {
            "codes": codes,
            "scales": scales,
            "counts": counts_P,
            "errors": _reduce(np.maximum, errors_N, offsets),
            "norms": _reduce(np.maximum, np.linalg.norm(vectors_NH, axis=1), offsets),
            "vectors": stored_NH,
        }
    return arrays


def _reduce(operation: np.ufunc, values_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    filled_P = np.diff(offsets) > 0
    reduced_P = np.zeros((len(filled_P), *values_N.shape[1:]), np.float32)
    if filled_P.any():
        # reduceat works on the starts of non-empty passages only.
        reduced_P[filled_P] = operation.reduceat(values_N, offsets[:-1][filled_P])
    return reduced_P


def quantise(vectors_NH: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (int8 [N, H]), scales and L2 errors (float32 [N]) of float32 vectors."""
    codes_NH = np.empty(vectors_NH.shape, np.int8)
    scales_N, errors_N = np.empty(len(vectors_NH), np.float32), np.empty(len(vectors_NH), np.float32)
    encode(vectors_NH, codes_NH, scales_N, errors_N)
    return codes_NH, scales_N, errors_N
