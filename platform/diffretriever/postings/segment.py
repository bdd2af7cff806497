"""A segment: the inverted index of one group of passages, in a folder of its own, never changed once written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from diffretriever.kernels.inversion import digest_postings
from diffretriever.kernels.postings import BLOCK_ROWS
from diffretriever.postings.builder import Impacts, write_segment
from diffretriever.postings.format import array_file, checksum, read_segment


@dataclass(frozen=True, slots=True)
class PostingsSegment:
    """An open segment; passages are known by their number, 0 for the first that was built in.

    Attributes:
        folder: where it is.
        passages: N.
        vocab_size: V.
        terms_D: see `format.DTYPES` for this and what follows. All are mapped files: memory fills with what queries
            read, and the system may take it back.
        peaks_D: float32.
        starts_DB: uint32 [D, B + 1].
        rows_P: uint16.
        codes_P: uint8.
        weights_P: float32.
    """

    folder: Path
    passages: int
    vocab_size: int
    terms_D: np.ndarray
    peaks_D: np.ndarray
    starts_DB: np.ndarray
    rows_P: np.ndarray
    codes_P: np.ndarray
    weights_P: np.ndarray

    @classmethod
    def build(cls, folder: str | Path, batches: Iterable[Impacts], vocab_size: int) -> Self:
        """Write a segment and open it. Nobody sees the folder before it is whole.

        Takes, for a while, 8 bytes of disk a posting beside the segment's own 7. A million passages are enough for
        one segment: the arrays are written all over at once, and should fit the memory that the system has free.

        Args:
            folder: local, not there yet.
            batches: passages in order, some at a time: ids (integers, ascending and unique within a passage), weights
                (float32, above 0) and offsets (int64, passage i of the batch owns offsets[i] to offsets[i + 1]).
            vocab_size: V, above every id.

        Raises:
            ValueError: `folder` exists, an id is outside the vocabulary or not in order, a weight is not positive and
                finite, or there are 2**32 postings or more.
        """
        write_segment(Path(folder), batches, vocab_size)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a segment; its size makes no difference to how long that takes.

        Raises:
            ValueError: `folder` holds no whole segment of this format.
        """
        header, arrays = read_segment(Path(folder))
        return cls(
            folder=Path(folder),
            passages=header.passages,
            vocab_size=header.vocab_size,
            terms_D=arrays["terms"],
            peaks_D=arrays["peaks"],
            starts_DB=arrays["starts"],
            rows_P=arrays["rows"],
            codes_P=arrays["codes"],
            weights_P=arrays["weights"],
        )

    def passage_digests(self) -> np.ndarray:
        """Return uint64 [N]: for each passage what `kernels.inversion.digest_impacts` makes of its impacts."""
        blocks = self.starts_DB.shape[1] - 1
        digests = np.zeros(blocks * BLOCK_ROWS, np.uint64)
        digest_postings(self.terms_D, self.starts_DB, self.rows_P, self.weights_P.view(np.uint32), digests)
        return digests[: self.passages]

    def verify(self) -> None:
        """Read every byte and compare it with what was written.

        Raises:
            ValueError: an array has changed since it was built.
        """
        header, arrays = read_segment(self.folder)
        for name, array in arrays.items():
            if checksum(array) != header.checksums.get(name):
                raise ValueError(f"{array_file(self.folder, name)} is damaged: build the segment again")
