"""What sparse searches read of one fragment, kept in memory-mapped files beside the table: postings, ids.

As with `index.fragment_codes`, a fragment's data file never changes, so neither do these: deletions are looked up in
the table at search time, compaction and replacement make new fragments, which get files of their own.

Legend: P passages of the fragment, C chosen passages.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from diffretriever.encoders.representations import read_impacts
from diffretriever.files import whole_folder
from diffretriever.index.live_rows import rows_written
from diffretriever.index.mapped_files import ends_of, ids_from, letters_of, read_header, write_header
from diffretriever.postings.builder import Impacts, write_segment
from diffretriever.postings.segment import PostingsSegment

FORMAT = 1
"""Of these files, those of the segment included."""
_FILES = {"ids": np.uint8, "id_lengths": np.int32, "rows": np.uint32}


@dataclass(frozen=True)
class FragmentPostings:
    """The files of a fragment.

    Attributes:
        segment: the inverted index; its passage number p is the p-th of what follows.
        rows_P: uint32 [P], ascending: the passage's place among the rows that the fragment was written with.
        ids: P passage ids, memory-mapped.
    """

    segment: PostingsSegment
    rows_P: np.ndarray
    ids: pa.LargeStringArray

    def __len__(self) -> int:
        return len(self.rows_P)

    def ids_of(self, chosen_C: np.ndarray) -> list[str]:
        """Return the ids of the passages `chosen_C` (int64 [C])."""
        return self.ids.take(pa.array(chosen_C)).to_pylist()

    @classmethod
    def open(cls, folder: Path) -> FragmentPostings | None:
        """Map the files in `folder`; None where there are none, or of another format.

        Raises:
            ValueError: a file is missing or damaged.
        """
        if read_header(folder, FORMAT) is None:
            return None
        segment = PostingsSegment.open(folder / "segment")
        arrays = {name: _mapped(folder / f"{name}.npy") for name in _FILES}
        lengths_P, letters = arrays["id_lengths"], arrays["ids"]
        if not len(arrays["rows"]) == len(lengths_P) == segment.passages or ends_of(lengths_P)[-1] != len(letters):
            raise ValueError(f"the files in {folder} do not fit together: remove the folder and build it again")
        return cls(segment, arrays["rows"], ids_from(letters, lengths_P))

    @classmethod
    def build(cls, folder: Path, batches: Iterable[pa.RecordBatch], vocab_size: int) -> None:
        """Write a fragment's files, all or none.

        Args:
            folder: where they go.
            batches: with `id`, `impact_ids`, `impact_weights` and `_rowaddr`.
            vocab_size: V.

        Raises:
            ValueError: impacts are not sorted, not positive, or outside the vocabulary; see `PostingsSegment.build`.
        """
        if folder.is_dir() and cls.open(folder) is None:
            shutil.rmtree(folder)
        parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, dtype)] for name, dtype in _FILES.items()}

        def impacts() -> Iterator[Impacts]:
            for batch in batches:
                letters, lengths = letters_of(batch.column("id").to_pylist())
                parts["ids"].append(letters)
                parts["id_lengths"].append(lengths)
                parts["rows"].append(rows_written(batch.column("_rowaddr").to_numpy()))
                yield read_impacts(batch)

        with whole_folder(folder) as temporary:
            write_segment(temporary / "segment", impacts(), vocab_size)
            for name, arrays in parts.items():
                np.save(temporary / f"{name}.npy", np.concatenate(arrays))
            write_header(temporary, FORMAT)


def _mapped(file: Path) -> np.ndarray:
    try:
        # As a plain array: every slice of a memmap object costs microseconds.
        return np.load(file, mmap_mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is missing or cut short: remove its folder and build it again") from error
