"""What the sparse benchmark runs on bare segments, each loop in a process of its own; their impacts are made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import scipy.sparse

from benchmarks.measuring import peak_mb, serve_child
from benchmarks.sparse.figures import Alone, Beside, Built, Latencies
from diffretriever.schemas.base import Model
from diffretriever.search.sparse.segment import Impacts, PostingsSegment, SegmentHits, search

T = TypeVar("T")
BATCH = 5_000
"""Passages drawn at once."""
_ROWS = 16_384
"""Passages of a scipy product."""
# Content words of real text: the r-th most frequent is drawn in proportion to 1 / (r + 50), so that the first is in a
# seventh of all passages of 59 words.
_RANK_SHIFT = 50
_QUERY_SEED = 1 << 40


class MadeUpImpacts(Model):
    """A collection; the same values give the same impacts, and a smaller collection is the beginning of a larger."""

    law: Literal["zipf", "uniform"]
    """How often a term is drawn."""
    passages: int
    """How many."""
    terms: int = 59
    """Different terms of a passage, about."""
    query_terms: int = 22
    """Different terms of a query, about."""
    vocab_size: int = 150_000
    """Terms to draw from."""

    def batches(self) -> Iterator[Impacts]:
        """Yield the passages, `BATCH` at a time."""
        for first in range(0, self.passages, BATCH):
            yield self._draw(min(BATCH, self.passages - first), self.terms, first)

    def queries(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return ids and weights of each of `count` queries."""
        ids, weights, offsets = self._draw(count, self.query_terms, _QUERY_SEED)
        return [(ids[offsets[i] : offsets[i + 1]], weights[offsets[i] : offsets[i + 1]]) for i in range(count)]

    def _draw(self, count: int, terms: int, seed: int) -> Impacts:
        rng = np.random.default_rng(seed)
        # A term drawn twice counts once.
        drawn = rng.random((count, terms + terms // 25))
        if self.law == "zipf":
            drawn = ((self.vocab_size / _RANK_SHIFT + 1) ** drawn - 1) * (_RANK_SHIFT / self.vocab_size)
        ranks = np.minimum((drawn * self.vocab_size).astype(np.int32), self.vocab_size - 1)
        # A tokenizer's ids are in no order of frequency.
        ids = np.random.default_rng(0).permutation(self.vocab_size).astype(np.int32)[ranks]
        ids.sort(axis=1)
        keep = np.diff(ids, axis=1, prepend=-1) > 0
        logits = rng.normal(6, 4, int(keep.sum())).clip(min=0.02)
        offsets = np.concatenate([[0], np.cumsum(keep.sum(axis=1))]).astype(np.int64)
        return ids[keep], np.log1p(logits).astype(np.float32), offsets


def build(folder: str, impacts: dict[str, Any], per_segment: int) -> Built:
    """Build segments of `per_segment` passages each, a multiple of a batch."""
    made = MadeUpImpacts.model_validate(impacts)
    # Compiling is not building.
    tiny = made.model_copy(update={"passages": 9})
    PostingsSegment.build(tiny.batches(), made.vocab_size, Path(folder))
    stream, start = _Timed(made.batches()), time.perf_counter()
    for first in range(0, made.passages, per_segment):
        built = PostingsSegment.build(islice(stream, per_segment // BATCH), made.vocab_size, Path(folder))
        built.save(Path(folder) / f"{first:09d}")
    seconds = time.perf_counter() - start - stream.seconds
    segments = _segments(folder)
    assert sum(s.passages for s in segments) == made.passages
    postings = sum(len(s.rows_P) for s in segments)
    resident = sum(map(resident_bytes, segments))
    disk = sum(file.stat().st_size for file in Path(folder).glob("0*/*"))
    return Built(
        seconds=seconds, peak_mb=peak_mb(), postings=postings, resident=resident / postings, disk=disk / postings
    )


def resident_bytes(segment: PostingsSegment) -> int:
    """Return the size of what queries read."""
    arrays = (segment.terms_D, segment.starts_DB, segment.rows_P, segment.weights_P)
    return sum(array.nbytes for array in arrays)


def mapped_bytes(folder: str) -> int:
    """Return how much of the mapped files below a folder is in this process's memory."""
    lines, inside, total = Path("/proc/self/smaps").read_text("utf-8").splitlines(), False, 0
    for line in lines:
        first, *rest = line.split()
        if not first.endswith(":"):
            inside = bool(rest) and rest[-1].startswith(folder)
        elif first == "Rss:" and inside:
            total += int(rest[0]) * 1024
    return total


class _Timed:
    """An iterator that knows how long its source took."""

    def __init__(self, source: Iterator[Impacts]) -> None:
        self._source = source
        self.seconds = 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Impacts:
        start = time.perf_counter()
        try:
            return next(self._source)
        finally:
            self.seconds += time.perf_counter() - start


def alone(folder: str, impacts: dict[str, Any], queries: int, k: int) -> Alone:
    """Search and nothing else, so that the memory is the search's own; a first round is warm-up."""
    segments, asked = _segments(folder), MadeUpImpacts.model_validate(impacts).queries(queries)
    numbers = numbered(segments)
    for _ in range(2):
        ours = Latencies(wall=[], processor=[])
        for query in asked:
            measure(ours, partial(_find, segments, numbers, query, k))
    return Alone(ours=ours, peak_mb=peak_mb(), mapped=mapped_bytes(folder) / sum(len(s.rows_P) for s in segments))


def beside(folder: str, impacts: dict[str, Any], queries: int, k: int, today_queries: int) -> Beside:
    """Search in all ways, the last for the first few queries only; scores and rankings must be equal."""
    made, segments = MadeUpImpacts.model_validate(impacts), _segments(folder)
    passages = _matrix(made)
    by_term, asked = passages.tocsc(), made.queries(queries)
    numbers = numbered(segments)
    for query in asked:
        _find(segments, numbers, query, k)
    ours, columns, today = (Latencies(wall=[], processor=[]) for _ in range(3))
    for number, query in enumerate(asked):
        found = measure(ours, partial(_find, segments, numbers, query, k))
        scores = measure(columns, partial(_by_columns, by_term, *query, k))
        assert np.array_equal(found.scores, scores), "the columns give other scores"
        if number < today_queries:
            hits = measure(today, partial(_by_rows, passages, *query, k))
            pairs = zip(found.numbers.tolist(), found.scores.tolist(), strict=True)
            assert [(_name(number), score) for number, score in pairs] == hits, "today's search gives another ranking"
    return Beside(ours=ours, columns=columns, today=today)


def _segments(folder: str) -> list[PostingsSegment]:
    return [PostingsSegment.open(path) for path in sorted(Path(folder).glob("0*"))]


def _find(
    segments: list[PostingsSegment], numbers: list[np.ndarray], query: tuple[np.ndarray, np.ndarray], k: int
) -> SegmentHits:
    (found,) = search(segments, numbers, (*query, np.array([0, len(query[0])])), k)
    return found


def numbered(segments: list[PostingsSegment]) -> list[np.ndarray]:
    """Return the numbers of each segment's passages, in order."""
    sizes = [segment.passages for segment in segments]
    return np.split(np.arange(sum(sizes), dtype=np.int32), np.cumsum(sizes)[:-1])


def measure(into: Latencies, work: Callable[[], T]) -> T:
    """Return what the work returns, and note how long it took."""
    wall, processor = time.perf_counter(), time.thread_time()
    answer = work()
    into.processor.append((time.thread_time() - processor) * 1e3)
    into.wall.append((time.perf_counter() - wall) * 1e3)
    return answer


def _matrix(made: MadeUpImpacts) -> scipy.sparse.csr_array:
    """Return all passages, one a row."""
    from diffretriever.vectors.sparse import impact_matrix

    return scipy.sparse.vstack([impact_matrix(*batch, made.vocab_size) for batch in made.batches()], format="csr")


def _by_columns(by_term: scipy.sparse.csc_array, ids: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """Return the best scores, after a product of the query's columns and a partial sort."""
    scores = by_term[:, ids] @ weights
    best = np.argpartition(-scores, k)[:k]
    best = best[np.lexsort((best, -scores[best]))]
    return np.asarray(scores[best][scores[best] > 0])


def _by_rows(passages: scipy.sparse.csr_array, ids: np.ndarray, weights: np.ndarray, k: int) -> list[tuple[str, float]]:
    """Return the ranking of the exact search, by products of batches of rows; reading the batches is left out."""
    # Only here: torch comes with it, and would count as memory of a search.
    from diffretriever.vectors.hits import Passages, TopK
    from diffretriever.vectors.sparse import impact_matrix, sparse_scores

    query = impact_matrix(ids, weights, np.array([0, len(ids)]), passages.shape[1])
    # Names sort as the rows do.
    numbers_P = np.arange(passages.shape[0], dtype=np.int32)
    best = TopK(1, k, Passages(pa.array(map(_name, numbers_P), pa.large_string())), only_positive=True)
    for first in range(0, passages.shape[0], _ROWS):
        batch = passages[first : first + _ROWS]
        best.add(sparse_scores(query, batch).toarray(), numbers_P[first : first + batch.shape[0]])
    return best.results()[0]


def _name(row: int) -> str:
    """Return an id that sorts as the rows do."""
    return f"{row:09d}"


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (build, alone, beside)})
