"""Memory-mapped inverted index of one group of passages, for learned impacts and for BM25.

A passage has one weight per term; its score is the inner product with the query's weights.

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
"""Term ids (integers, ascending within a passage), weights (float32) and offsets (int64, texts + 1) of texts."""

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
    """An immutable segment. Passages are numbered in input order, from 0.

    Attributes:
        passages: N.
        vocab_size: V.
        terms_D: int32; see `DTYPES` for the arrays. Large arrays of an opened segment are memory-mapped.
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
        """Build a segment in memory (6 bytes per posting), spooling 8 bytes per posting to `folder`.

        Raises:
            ValueError: an id is outside the vocabulary or unsorted, a weight is not positive and finite, or there are
                2**32 postings or more.
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
        """Build a segment from valid impacts, 65,536 passages per block; counts_V is each term's document frequency.

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
            kernels.scatter(block, cursors_V, rows_P, weights_P)
        starts_DB[:, -1] = cursors_V[terms_D]
        for array in (terms_D, starts_DB, rows_P, weights_P):
            # Read-only like mapped files, so that kernels compile once.
            array.flags.writeable = False
        return cls(passages, len(counts_V), terms_D, starts_DB, rows_P, weights_P)

    def save(self, folder: Path, prefix: str = "") -> None:
        """Write the arrays to a folder; file names start with `prefix`."""
        shape = np.array([self.passages, self.vocab_size])
        arrays = (shape, self.terms_D, self.starts_DB, self.rows_P, self.weights_P)
        for name, array in zip(DTYPES, arrays, strict=True):
            array.tofile(folder / f"{prefix}{name}.bin")

    @classmethod
    def open(cls, folder: Path, prefix: str = "") -> Self:
        """Map a segment written by `save`.

        Raises:
            ValueError: the arrays are inconsistent.
            OSError: an array is missing.
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


class SegmentHits(NamedTuple):
    """Hits of one query by descending score, then ascending number."""

    numbers: np.ndarray
    """int32 [F], numbers in the order of the index."""
    scores: np.ndarray
    """float32 [F], above 0."""


def search(
    segments: Sequence[PostingsSegment], numbers: Sequence[np.ndarray], queries: Impacts, k: int, *, threads: int = 1
) -> list[SegmentHits]:
    """Return the k best passages of each of Q queries among those that share a term with it.

    Scores are float32 inner products, summed in the order of the query's terms. With ascending ids they equal
    `scoring.sparse.sparse_scores` to the bit.

    Args:
        segments: segments of one vocabulary.
        numbers: unique passage numbers of each segment, int32 [N], which break ties; negative excludes a passage.
        queries: ids in any order (repeated ids add up), float32 weights above 0, and offsets.
        k: at least 1.
        threads: number of parallel queries.

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
        results = pool.map(lambda share: _find(segments, numbers, share, k), shares)
        return list(chain.from_iterable(results))


def _find(
    segments: Sequence[PostingsSegment],
    numbers: Sequence[np.ndarray],
    texts: Sequence[tuple[np.ndarray, np.ndarray]],
    k: int,
) -> list[SegmentHits]:
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
        result = SegmentHits(numbers_F, (keys_F >> np.uint64(32)).astype(np.uint32).view(np.float32))
        if len(result.scores) and result.scores[0] == np.inf:
            raise ValueError("scores of this query exceed float32: scale its weights or the passages' down")
        results.append(result)
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
    """Raise ValueError unless all weights are positive and finite."""
    if len(weights_I) and not (weights_I.min() > 0 and weights_I.max() < np.inf):
        raise ValueError(f"the weights of {whose} must be above 0 and finite: encode again")


def _blocks_in(ids_file: IO[bytes], weights_file: IO[bytes], lengths_N: np.ndarray) -> Iterator[Impacts]:
    ids_file.seek(0)
    weights_file.seek(0)
    for first in range(0, len(lengths_N), BLOCK_ROWS):
        offsets = offsets_of(lengths_N[first : first + BLOCK_ROWS])
        ids_I = np.fromfile(ids_file, np.int32, int(offsets[-1]))
        yield ids_I, np.fromfile(weights_file, np.float32, len(ids_I)), offsets


def _n_blocks(passages: int) -> int:
    return -(-passages // BLOCK_ROWS)
