"""Building a segment: passages arrive in batches, are spooled to disk while terms are counted, then put in place.

Memory holds one block of passages and a few numbers per vocabulary entry and per passage; the arrays of the segment
are mapped files, which the operating system writes out as it needs.

Legend: V vocabulary, D terms that occur, B blocks, P postings, I impacts of a batch, N passages.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from diffretriever.files import whole_folder
from diffretriever.kernels.inversion import place, tally
from diffretriever.kernels.postings import BLOCK_ROWS
from diffretriever.postings.checks import check_ids, check_weights, first_out_of_order
from diffretriever.postings.format import DTYPES, Header, array_file, blocks_of, checksum, write_header

Impacts: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of some passages: ids (integers, ascending within a passage), weights (float32), offsets (int64, passages + 1)."""

_MOST_POSTINGS = 2**32 - 1


def write_segment(folder: Path, batches: Iterable[Impacts], vocab_size: int) -> None:
    """Write the segment of the passages in `batches`, whole or not at all; see `PostingsSegment.build`."""
    if folder.exists():
        raise ValueError(f"{folder} exists: remove it, or choose another folder")
    with whole_folder(folder) as temporary:
        spool = _Spool(temporary / "spool", vocab_size)
        for batch in batches:
            spool.add(batch)
        arrays = _make_arrays(temporary, spool)
        _fill(arrays, spool)
        spool.remove()
        header = Header(
            vocab_size=vocab_size,
            passages=spool.passages,
            terms=len(arrays["terms"]),
            postings=len(arrays["rows"]),
            checksums={name: checksum(array) for name, array in arrays.items()},
        )
        write_header(temporary, header)


class _Spool:
    """Impacts on disk, passage by passage, and how many each term has of them."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.counts_V = np.zeros(vocab_size, np.int64)
        self.peaks_V = np.zeros(vocab_size, np.float32)
        self.passages = 0
        self._lengths: list[np.ndarray] = []
        self._ids, self._weights = folder / "ids", folder / "weights"
        self._folder = folder
        folder.mkdir()
        self._ids.touch()
        self._weights.touch()

    def add(self, batch: Impacts) -> None:
        weights_I = np.asarray(batch[1], np.float32)
        _check(batch[0], weights_I, batch[2], len(self.counts_V), self.passages)
        ids_I = np.asarray(batch[0], np.int32)
        tally(ids_I, weights_I, self.counts_V, self.peaks_V)
        self._lengths.append(np.diff(batch[2]).astype(np.int32))
        self.passages += len(self._lengths[-1])
        for file, array in ((self._ids, ids_I), (self._weights, weights_I)):
            with file.open("ab") as stream:
                array.tofile(stream)

    def blocks(self) -> Iterable[Impacts]:
        """Read back, one block of passages at a time."""
        lengths_N, skip = np.concatenate([*self._lengths, np.zeros(0, np.int32)]), 0
        for first in range(0, self.passages, BLOCK_ROWS):
            offsets = np.concatenate([[0], np.cumsum(lengths_N[first : first + BLOCK_ROWS], dtype=np.int64)])
            count = int(offsets[-1])
            ids_I = np.fromfile(self._ids, np.int32, count, offset=4 * skip)
            yield ids_I, np.fromfile(self._weights, np.float32, count, offset=4 * skip), offsets
            skip += count

    def remove(self) -> None:
        shutil.rmtree(self._folder)


def _check(ids_I: np.ndarray, weights_I: np.ndarray, offsets: np.ndarray, vocab_size: int, first: int) -> None:
    assert offsets[0] == 0, "offsets start at 0"
    assert len(ids_I) == len(weights_I) == offsets[-1], "offsets end at the number of impacts"
    check_ids(ids_I, vocab_size)
    check_weights(weights_I, "passages' impacts")
    row = first_out_of_order(ids_I, offsets)
    if row is not None:
        raise ValueError(f"the ids of passage number {first + row} do not ascend: sort its impacts by id, each id once")


def _make_arrays(folder: Path, spool: _Spool) -> dict[str, np.ndarray]:
    terms_D = np.flatnonzero(spool.counts_V)
    postings = int(spool.counts_V.sum())
    if postings > _MOST_POSTINGS:
        raise ValueError(f"{postings} postings are too many for one segment: make segments of fewer passages")
    shapes = Header(
        vocab_size=len(spool.counts_V), passages=spool.passages, terms=len(terms_D), postings=postings, checksums={}
    ).shapes
    arrays: dict[str, np.ndarray] = {
        name: np.lib.format.open_memmap(array_file(folder, name), "w+", dtype, shapes[name])
        for name, dtype in DTYPES.items()
    }
    arrays["terms"][:] = terms_D
    arrays["peaks"][:] = spool.peaks_V[terms_D]
    return arrays


def _fill(arrays: dict[str, np.ndarray], spool: _Spool) -> None:
    cursors_V = np.cumsum(spool.counts_V) - spool.counts_V
    rows_P, codes_P, weights_P = (arrays[name].view(np.ndarray) for name in ("rows", "codes", "weights"))
    for number, block in enumerate(spool.blocks()):
        arrays["starts"][:, number] = cursors_V[arrays["terms"]]
        place(block, spool.peaks_V, cursors_V, rows_P, codes_P, weights_P)
    arrays["starts"][:, blocks_of(spool.passages)] = cursors_V[arrays["terms"]]
