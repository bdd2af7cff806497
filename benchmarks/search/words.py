"""BM25's inner loop against numpy's way, over the postings of made-up texts: one query at a time, on one core.

Legend: D passages, V vocabulary, P postings, Q queries, T terms, K kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import scipy.sparse
from pydantic import Field, PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.search.vectors import VOCABULARY, made_up_ranks, share_of
from diffretriever.search.sparse.kernels import BLOCK_ROWS
from diffretriever.search.sparse.segment import Impacts, PostingsSegment, search

Matrix: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
COLUMNS = ("passages", "postings a query", "numpy, ms", "ours, ms", "ours, p95", "times faster")


class Bm25Benchmark(Benchmark):
    """Measure BM25's inner loop; words are drawn as in the texts of `python -m benchmarks.search`."""

    sizes: tuple[PositiveInt, ...] = (20_000, 1_000_000, 8_840_000)
    """Passages."""
    queries: int = Field(default=30, ge=2)
    """Queries of a size."""
    query_words: PositiveInt = 6
    """Words of a query, none of them a stop word."""
    k: PositiveInt = 1000
    """Passages kept for a query."""


def main(config: Bm25Benchmark) -> None:
    """Run every size and print a table."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    figures = {size: measured(config, size) for size in config.sizes}
    rows = [_row(size, *each) for size, each in figures.items()]
    config.report(about, f"\n{format_table(rows, COLUMNS)}", results={str(size): figures[size] for size in figures})


def measured(config: Bm25Benchmark, passages: int) -> tuple[float, list[float], list[float]]:
    """Return postings a query, and the milliseconds of each query by numpy and by ours; both find the same scores."""
    terms_QT = made_up_ranks(config.queries, config.query_words, 1)
    matrix = _matrix(np.unique(terms_QT), passages)
    segment = PostingsSegment.of_blocks(_blocks(matrix, passages), np.diff(matrix[0]), passages)
    numbers_D = np.arange(passages, dtype=np.int32)
    kept = min(config.k, passages)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(2):
        for terms_T in terms_QT:
            expected_K = _timed(times[0], lambda t=terms_T: _by_numpy(matrix, t, passages, kept))
            found_K = _timed(times[1], lambda t=terms_T: _by_us(segment, t, numbers_D, kept))
            assert np.array_equal(found_K, expected_K), "scores are the same"
        if not turn:
            # Compiling, and pages that nobody has touched yet.
            times = ([], [])
    return float(np.diff(matrix[0])[terms_QT].sum(axis=1).mean()), *times


def _matrix(terms: np.ndarray, passages: int) -> Matrix:
    """Return postings of these terms alone: each passage has each as often as its texts would."""
    rng = np.random.default_rng(0)
    found = {term: np.flatnonzero(rng.random(passages, np.float32) < share_of(term)) for term in terms.tolist()}
    counts_V = np.zeros(VOCABULARY, np.int64)
    counts_V[terms] = [len(each) for each in found.values()]
    passages_P = np.concatenate(list(found.values())).astype(np.int32)
    return np.concatenate([[0], counts_V.cumsum()]), passages_P, rng.random(len(passages_P), np.float32) + np.float32(1)


def _by_numpy(matrix: Matrix, terms_T: np.ndarray, passages: int, kept: int) -> np.ndarray:
    """Return the best scores float32 [K], best first, then 0: all are added up, those above 0 sorted in part."""
    starts_V, passages_P, weights_P = matrix
    totals_D = np.zeros(passages, np.float32)
    for term in terms_T:
        own = slice(starts_V[term], starts_V[term + 1])
        # A term names a passage once.
        totals_D[passages_P[own]] += weights_P[own]
    above = totals_D[totals_D > 0]
    if len(above) > kept:
        above = np.partition(above, len(above) - kept)[len(above) - kept :]
    best_K = np.zeros(kept, np.float32)
    best_K[: len(above)] = np.sort(above)[::-1]
    return best_K


def _blocks(matrix: Matrix, passages: int) -> Iterator[Impacts]:
    by_term = scipy.sparse.csc_array((matrix[2], matrix[1], matrix[0].astype(np.int32)), (passages, VOCABULARY))
    by_passage = by_term.tocsr()
    for first in range(0, passages, BLOCK_ROWS):
        block = by_passage[first : first + BLOCK_ROWS]
        yield block.indices, block.data, block.indptr.astype(np.int64)


def _by_us(segment: PostingsSegment, terms_T: np.ndarray, numbers_D: np.ndarray, kept: int) -> np.ndarray:
    query = terms_T, np.ones(len(terms_T), np.float32), np.array([0, len(terms_T)])
    best_K = np.zeros(kept, np.float32)
    (found,) = search([segment], [numbers_D], query, kept)
    best_K[: len(found.scores)] = found.scores
    return best_K


def _timed(into: list[float], work: object) -> np.ndarray:
    assert callable(work)
    start = time.perf_counter()
    found: np.ndarray = work()
    into.append((time.perf_counter() - start) * 1e3)
    return found


def _row(passages: int, postings: float, theirs: list[float], ours: list[float]) -> list[str]:
    ratio = statistics.median(other / own for own, other in zip(ours, theirs, strict=True))
    p95 = statistics.quantiles(ours, n=20, method="inclusive")[18]
    medians = [f"{statistics.median(each):.2f}" for each in (theirs, ours)]
    return [f"{passages:,}", f"{postings:,.0f}", *medians, f"{p95:.2f}", f"{ratio:.1f}"]


if __name__ == "__main__":
    run(Bm25Benchmark, main)
