"""A segment: the inverted index of one group of passages, in a folder of derived files that never change.

The arrays are mapped into memory. To build one,
passages arrive in batches, are spooled to disk while terms are counted, then put in place: memory holds one block of
passages and a few numbers for each vocabulary entry and each passage, and the operating system writes the arrays out as
it needs.

Legend: V vocabulary, D terms that occur, B blocks of 65,536 passages (the last may be smaller), P postings, I impacts
of a batch, N passages.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from diffretriever.index.derived import new_array, read_arrays, read_header, sealed_folder, write_header
from diffretriever.representations import offsets_of
from diffretriever.search.sparse.kernels import BLOCK_ROWS, digest_postings, place

Impacts: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of some passages: ids (integers, ascending within a passage), weights (float32), offsets (int64, passages + 1)."""

DTYPES: dict[str, type[Any]] = {"terms": np.int32, "starts": np.uint32, "rows": np.uint16, "weights": np.float32}
"""The arrays by the name of their file.

`terms` [D] are the vocabulary entries that occur, ascending; `starts` [D, B + 1] the first posting of each in each
block, and its end. Of each posting, term by term and passage by passage, `rows` [P] is the passage's row within its
block, and `weights` [P] its weight.
"""

_MOST_POSTINGS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class PostingsSegment:
    """An open segment; passages are known by their number, 0 for the first that was built in.

    Attributes:
        folder: where it is.
        passages: N.
        vocab_size: V.
        terms_D: see `DTYPES` for this and what follows. All but small ones are mapped files: memory fills with what
            queries read, and the system may take it back.
        starts_DB: uint32 [D, B + 1].
        rows_P: uint16.
        weights_P: float32.
    """

    folder: Path
    passages: int
    vocab_size: int
    terms_D: np.ndarray
    starts_DB: np.ndarray
    rows_P: np.ndarray
    weights_P: np.ndarray

    @classmethod
    def build(cls, folder: str | Path, batches: Iterable[Impacts], vocab_size: int) -> Self:
        """Write a segment into a folder of its own, whole or not at all, and open it.

        Takes, for a while, 8 bytes of disk a posting beside the segment's own 6. A million passages are enough for
        one segment: the arrays are written all over at once, and should fit the memory that the system has free.

        Args:
            folder: local, not there yet.
            batches: passages in order, some at a time: ids (integers, ascending and unique within a passage), weights
                (float32, above 0) and offsets (int64, passage i of the batch owns offsets[i] to offsets[i + 1]).
            vocab_size: V, above every id.

        Raises:
            ValueError: an id is outside the vocabulary or not in order, a weight is not positive and finite, or there
                are 2**32 postings or more.
        """
        with sealed_folder(Path(folder)) as new:
            write_segment(new, batches, vocab_size)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a segment; its size makes no difference to how long that takes.

        Raises:
            ValueError: the files are damaged, or do not fit together.
        """
        header, arrays = read_header(Path(folder)), read_arrays(Path(folder), DTYPES)
        terms_D, postings = arrays["terms"], len(arrays["rows"])
        starts_DB = arrays["starts"].reshape(len(terms_D), blocks_of(header["passages"]) + 1)
        if len(arrays["weights"]) != postings or not _starts_fit(starts_DB, postings):
            raise ValueError("the postings do not fit together")
        return cls(
            folder=Path(folder),
            passages=header["passages"],
            vocab_size=header["vocab_size"],
            terms_D=terms_D,
            starts_DB=starts_DB,
            rows_P=arrays["rows"],
            weights_P=arrays["weights"],
        )

    def passage_digests(self) -> np.ndarray:
        """Return uint64 [N]: for each passage what `kernels.digest_impacts` makes of its impacts."""
        blocks = self.starts_DB.shape[1] - 1
        digests = np.zeros(blocks * BLOCK_ROWS, np.uint64)
        digest_postings(self.terms_D, self.starts_DB, self.rows_P, self.weights_P.view(np.uint32), digests)
        return digests[: self.passages]


def write_segment(folder: Path, batches: Iterable[Impacts], vocab_size: int) -> None:
    """Write the segment of the passages in `batches` into a folder; see `PostingsSegment.build`."""
    spool = _Spool(folder / "spool", vocab_size)
    for batch in batches:
        spool.add(batch)
    _fill(_new_arrays(folder, spool), spool)
    spool.remove()
    write_header(folder, vocab_size=vocab_size, passages=spool.passages)


class _Spool:
    """Impacts on disk, passage by passage, and how many each term has of them."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.counts_V = np.zeros(vocab_size, np.int64)
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
        self.counts_V += np.bincount(ids_I, minlength=len(self.counts_V))
        self._lengths.append(np.diff(batch[2]).astype(np.int32))
        self.passages += len(self._lengths[-1])
        for file, array in ((self._ids, ids_I), (self._weights, weights_I)):
            with file.open("ab") as stream:
                array.tofile(stream)

    def blocks(self) -> Iterable[Impacts]:
        """Read back, one block of passages at a time."""
        lengths_N, skip = np.concatenate([*self._lengths, np.zeros(0, np.int32)]), 0
        for first in range(0, self.passages, BLOCK_ROWS):
            offsets = offsets_of(lengths_N[first : first + BLOCK_ROWS])
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


def _new_arrays(folder: Path, spool: _Spool) -> dict[str, np.ndarray]:
    terms_D = np.flatnonzero(spool.counts_V)
    postings = int(spool.counts_V.sum())
    if postings > _MOST_POSTINGS:
        raise ValueError(f"{postings} postings are too many for one segment: make segments of fewer passages")
    shapes = {"terms": (len(terms_D),), "starts": (len(terms_D), blocks_of(spool.passages) + 1)}
    arrays = {
        name: new_array(folder / f"{name}.bin", dtype, shapes.get(name, (postings,))) for name, dtype in DTYPES.items()
    }
    arrays["terms"][:] = terms_D
    return arrays


def _fill(arrays: dict[str, np.ndarray], spool: _Spool) -> None:
    cursors_V = np.cumsum(spool.counts_V) - spool.counts_V
    for number, block in enumerate(spool.blocks()):
        arrays["starts"][:, number] = cursors_V[arrays["terms"]]
        place(block, cursors_V, arrays["rows"], arrays["weights"])
    arrays["starts"][:, blocks_of(spool.passages)] = cursors_V[arrays["terms"]]


def blocks_of(passages: int) -> int:
    """Return B."""
    return -(-passages // BLOCK_ROWS)


def _starts_fit(starts_DB: np.ndarray, postings: int) -> bool:
    """Return whether each term's postings end where the next one's begin: nothing looks beyond the last then."""
    borders = starts_DB.astype(np.int64)
    return bool(
        (np.diff(borders, axis=1) >= 0).all()
        and (borders[1:, 0] == borders[:-1, -1]).all()
        and (not len(borders) or (borders[0, 0], borders[-1, -1]) == (0, postings))
    )


def check_ids(ids_I: np.ndarray, vocab_size: int) -> None:
    """Raise ValueError if an id is outside the vocabulary."""
    if len(ids_I) and not (ids_I.min() >= 0 and ids_I.max() < vocab_size):
        wrong = ids_I.min() if ids_I.min() < 0 else ids_I.max()
        raise ValueError(f"token id {wrong} is outside a vocabulary of {vocab_size}: use the retriever's own tokenizer")


def check_weights(weights_I: np.ndarray, whose: str) -> None:
    """Raise ValueError if a weight is not above 0 and finite, NaN included."""
    if len(weights_I) and not (weights_I.min() > 0 and weights_I.max() < np.inf):
        raise ValueError(f"the weights of {whose} must be above 0 and finite: encode again")


def first_out_of_order(ids_I: np.ndarray, offsets: np.ndarray) -> int | None:
    """Return the first text whose ids do not ascend, or None; text i owns offsets[i] to offsets[i + 1]."""
    ascends_I = np.diff(ids_I, prepend=-1) > 0
    ascends_I[offsets[:-1][np.diff(offsets) > 0]] = True
    return None if ascends_I.all() else int(np.searchsorted(offsets, np.argmin(ascends_I), side="right")) - 1
