"""A segment: the inverted index of one group of passages, as arrays that are mapped into memory.

Learned impacts and BM25 are stored and searched the same way: a passage has one weight for each of its terms, and its
score is the inner product with the query's weights.

Legend: V vocabulary, D terms that occur, B blocks of 65,536 passages (the last may be smaller), P postings, I impacts
of a batch, N passages, T terms of the queries, F passages found, Q queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self, TypeAlias

import numpy as np

from diffretriever.index.derived import read_arrays
from diffretriever.search.sparse import kernels
from diffretriever.search.sparse.kernels import BLOCK_ROWS, COMPLEMENT
from diffretriever.vectors.representations import offsets_of
from diffretriever.vectors.sparse import check_ids

Impacts: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of some texts: ids (integers, ascending within a passage), weights (float32), offsets (int64, texts + 1)."""

DTYPES: dict[str, type[Any]] = {
    "shape": np.int64,
    "terms": np.int32,
    "starts": np.uint32,
    "rows": np.uint16,
    "weights": np.float32,
}
"""The arrays of a segment, by the name of their file.

`shape` is the number of passages and the size of the vocabulary. `terms` [D] are the vocabulary entries that occur,
ascending; `starts` [D, B + 1] the first posting of each in each block, and its end. Of each posting, term by term and
passage by passage, `rows` [P] is the passage's row within its block, and `weights` [P] its weight.
"""

_MOST_POSTINGS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class PostingsSegment:
    """A segment that never changes. Passages have the numbers in which they came, from 0.

    Attributes:
        passages: N.
        vocab_size: V.
        terms_D: int32; see `DTYPES` for this and the following. Large arrays of an opened segment are mapped files.
        starts_DB: uint32 [D, B + 1].
        rows_P: uint16.
        weights_P: float32.
    """

    passages: int
    vocab_size: int
    terms_D: np.ndarray
    starts_DB: np.ndarray
    rows_P: np.ndarray
    weights_P: np.ndarray

    @classmethod
    def build(cls, batches: Iterable[Impacts], vocab_size: int, folder: Path) -> Self:
        """Make a segment in memory: 6 bytes a posting. For a while, 8 bytes a posting are on disk, in `folder`.

        `batches` are passages in order; every id is below `vocab_size`.

        Raises:
            ValueError: an id is outside the vocabulary or not in order, a weight is not positive and finite, or there
                are 2**32 postings or more.
        """
        counts_V, lengths, passages = np.zeros(vocab_size, np.int64), [np.empty(0, np.int64)], 0
        with TemporaryFile(dir=folder) as ids_file, TemporaryFile(dir=folder) as weights_file:
            for ids_I, weights_I, offsets in batches:
                _check_passages(ids_I, weights_I, offsets, vocab_size, passages)
                counts_V += np.bincount(ids_I, minlength=vocab_size)
                lengths.append(np.diff(offsets))
                passages += len(offsets) - 1
                ids_I.astype(np.int32).tofile(ids_file)
                weights_I.astype(np.float32).tofile(weights_file)
            return cls.of_blocks(_blocks_in(ids_file, weights_file, np.concatenate(lengths)), counts_V, passages)

    @classmethod
    def of_blocks(cls, blocks: Iterable[Impacts], counts_V: np.ndarray, passages: int) -> Self:
        """Make a segment in memory of valid impacts, 65,536 passages at a time; counts_V are the passages of each term.

        Raises:
            ValueError: there are 2**32 postings or more.
        """
        terms_D, postings = np.flatnonzero(counts_V).astype(np.int32), int(counts_V.sum())
        if postings > _MOST_POSTINGS:
            raise ValueError(f"{postings} postings are too many for one segment: make segments of fewer passages")
        starts_DB = np.empty((len(terms_D), _n_blocks(passages) + 1), np.uint32)
        rows_P, weights_P = np.empty(postings, np.uint16), np.empty(postings, np.float32)
        cursors_V = np.cumsum(counts_V) - counts_V
        for number, block in enumerate(blocks):
            starts_DB[:, number] = cursors_V[terms_D]
            kernels.place(block, cursors_V, rows_P, weights_P)
        starts_DB[:, -1] = cursors_V[terms_D]
        for array in (terms_D, starts_DB, rows_P, weights_P):
            # As mapped files are: kernels are compiled for one of the two.
            array.flags.writeable = False
        return cls(passages, len(counts_V), terms_D, starts_DB, rows_P, weights_P)

    def save(self, folder: Path, prefix: str = "") -> None:
        """Write the arrays into a folder, under names that begin with a prefix."""
        shape = np.array([self.passages, self.vocab_size])
        arrays = (shape, self.terms_D, self.starts_DB, self.rows_P, self.weights_P)
        for name, array in zip(DTYPES, arrays, strict=True):
            array.tofile(folder / f"{prefix}{name}.bin")

    @classmethod
    def open(cls, folder: Path, prefix: str = "") -> Self:
        """Map a segment that `save` wrote; its size makes little difference to how long that takes.

        Raises:
            ValueError: the arrays are not those of a segment.
            OSError: one is missing.
        """
        shape, terms_D, starts, rows_P, weights_P = read_arrays(
            folder, {f"{prefix}{name}": dtype for name, dtype in DTYPES.items()}
        ).values()
        passages, vocab_size = shape.tolist()
        starts_DB = starts.reshape(len(terms_D), _n_blocks(passages) + 1)
        borders = starts_DB.astype(np.int64)
        if (
            len(rows_P) != len(weights_P)
            or (np.diff(borders, axis=1) < 0).any()
            or (borders[1:, 0] != borders[:-1, -1]).any()
            or (len(borders) and (borders[0, 0], borders[-1, -1]) != (0, len(rows_P)))
        ):
            raise ValueError(f"the arrays in {folder} do not fit together: build the segment again")
        return cls(passages, vocab_size, terms_D, starts_DB, rows_P, weights_P)


class Found(NamedTuple):
    """The passages found for one query, by score descending, then by number ascending."""

    numbers: np.ndarray
    """int32 [F], their numbers in the order of the index."""
    scores: np.ndarray
    """float32 [F], above 0."""


def search(
    segments: Sequence[PostingsSegment], numbers: Sequence[np.ndarray], queries: Impacts, k: int, *, threads: int = 1
) -> list[Found]:
    """Return the k best passages of each of Q queries; every passage that shares a term with a query is scored.

    Scores are inner products in float32, added in the order of the query's terms: of ascending ids, to the bit those of
    `scoring.sparse.sparse_scores`.

    Args:
        segments: of one vocabulary.
        numbers: for each segment int32 [N], the numbers of its passages, by which ties are ranked; negative for
            passages not to be found. No two are equal.
        queries: ids in any order (one that is there twice counts twice), float32 weights above 0, and offsets.
        k: at least 1.
        threads: queries to search for at a time; the inner loops hold no lock.

    Raises:
        ValueError: a score exceeds float32, or k is below 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}: ask for at least one passage")
    ids_T, weights_T, offsets = queries[0].astype(np.int64), queries[1], queries[2]
    texts = [(ids_T[start:end], weights_T[start:end]) for start, end in pairwise(offsets)]
    if threads == 1 or len(texts) <= 1:
        return _find(segments, numbers, texts, k)
    size = -(-len(texts) // threads)
    shares = [texts[first : first + size] for first in range(0, len(texts), size)]
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda share: _find(segments, numbers, share, k), shares)
        return list(chain.from_iterable(found))


def _find(
    segments: Sequence[PostingsSegment],
    numbers: Sequence[np.ndarray],
    texts: Sequence[tuple[np.ndarray, np.ndarray]],
    k: int,
) -> list[Found]:
    """Search for one query after the other, each with its ids and weights."""
    totals_R, most = np.empty(BLOCK_ROWS, np.float32), min(k, sum(segment.passages for segment in segments))
    scores, results = (totals_R, totals_R.view(np.int32)), []
    for ids_T, weights_T in texts:
        positions_T, pool = np.empty(len(ids_T), np.int64), kernels.new_pool(most)
        for segment, numbers_N in zip(segments, numbers, strict=True):
            assert len(numbers_N) == segment.passages, "a number a passage"
            kernels.look_up(segment.terms_D, ids_T, positions_T)
            arrays = segment.starts_DB, segment.rows_P, segment.weights_P
            kernels.collect(arrays, (positions_T, weights_T), numbers_N, scores, pool, k)
        keys_F = np.sort(kernels.best_keys(pool, k))[::-1]
        numbers_F = (COMPLEMENT - (keys_F & COMPLEMENT)).astype(np.int32)
        found = Found(numbers_F, (keys_F >> np.uint64(32)).astype(np.uint32).view(np.float32))
        if len(found.scores) and found.scores[0] == np.inf:
            raise ValueError("scores of this query exceed float32: scale its weights or the passages' down")
        results.append(found)
    return results


def _check_passages(ids_I: np.ndarray, weights_I: np.ndarray, offsets: np.ndarray, vocab_size: int, first: int) -> None:
    assert offsets[0] == 0, "offsets start at 0"
    assert len(ids_I) == len(weights_I) == offsets[-1], "offsets end at the number of impacts"
    check_ids(ids_I, vocab_size)
    check_weights(weights_I, "passages' impacts")
    ascends_I = np.diff(ids_I, prepend=-1) > 0
    ascends_I[offsets[:-1][np.diff(offsets) > 0]] = True
    if not ascends_I.all():
        row = first + int(np.searchsorted(offsets, np.argmin(ascends_I), side="right")) - 1
        raise ValueError(f"the ids of passage number {row} do not ascend: sort its impacts by id, each id once")


def check_weights(weights_I: np.ndarray, whose: str) -> None:
    """Raise ValueError if a weight is not above 0 and finite, NaN included."""
    if len(weights_I) and not (weights_I.min() > 0 and weights_I.max() < np.inf):
        raise ValueError(f"the weights of {whose} must be above 0 and finite: encode again")


def _blocks_in(ids_file: IO[bytes], weights_file: IO[bytes], lengths_N: np.ndarray) -> Iterator[Impacts]:
    """Read spooled impacts back, one block of passages at a time."""
    ids_file.seek(0)
    weights_file.seek(0)
    for first in range(0, len(lengths_N), BLOCK_ROWS):
        offsets = offsets_of(lengths_N[first : first + BLOCK_ROWS])
        ids_I = np.fromfile(ids_file, np.int32, int(offsets[-1]))
        yield ids_I, np.fromfile(weights_file, np.float32, len(ids_I)), offsets


def _n_blocks(passages: int) -> int:
    return -(-passages // BLOCK_ROWS)
