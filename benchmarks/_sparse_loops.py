"""The loops that benchmarks/sparse.py compares, each run in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks._common import peak_mb, serve_child
from benchmarks._made_up_impacts import BATCH, MadeUpImpacts
from benchmarks._sparse_figures import Alone, Beside, Built, Latencies
from diffretriever.search.sparse.segment import Impacts, PostingsSegment
from diffretriever.search.sparse.segment_search import search

T = TypeVar("T")


def build(folder: str, impacts: dict[str, Any], per_segment: int) -> Built:
    """Build segments of `per_segment` passages each, a multiple of a batch."""
    made = MadeUpImpacts.model_validate(impacts)
    # Compiling is not building.
    tiny = made.model_copy(update={"passages": 9})
    PostingsSegment.build(Path(folder) / "warm-up", tiny.batches(), made.vocab_size)
    stream, start = _Timed(made.batches()), time.perf_counter()
    segments = [
        PostingsSegment.build(Path(folder) / f"{first:09d}", islice(stream, per_segment // BATCH), made.vocab_size)
        for first in range(0, made.passages, per_segment)
    ]
    seconds = time.perf_counter() - start - stream.seconds
    assert sum(s.passages for s in segments) == made.passages
    postings = sum(len(s.rows_P) for s in segments)
    resident = sum(map(resident_bytes, segments))
    disk = sum(file.stat().st_size for s in segments for file in s.folder.iterdir())
    return Built(
        seconds=seconds, peak_mb=peak_mb(), postings=postings, resident=resident / postings, disk=disk / postings
    )


def resident_bytes(segment: PostingsSegment) -> int:
    """Return the size of what bounds are computed from."""
    arrays = (segment.terms_D, segment.peaks_D, segment.starts_DB, segment.rows_P, segment.codes_P)
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
    for _ in range(2):
        ours = Latencies(wall=[], processor=[])
        for query in asked:
            measure(ours, partial(search, segments, *query, k))
    return Alone(ours=ours, peak_mb=peak_mb(), mapped=mapped_bytes(folder) / sum(len(s.rows_P) for s in segments))


def beside(folder: str, impacts: dict[str, Any], queries: int, k: int, today_queries: int) -> Beside:
    """Search in all ways, the last for the first few queries only; scores and rankings must be equal."""
    # Only here: torch comes with it, and would count as memory of a search.
    from benchmarks import _sparse_baselines as scipys

    made, segments = MadeUpImpacts.model_validate(impacts), _segments(folder)
    passages = scipys.matrix(made)
    by_term, asked = passages.tocsc(), made.queries(queries)
    firsts = np.cumsum([0, *(segment.passages for segment in segments)])
    for query in asked:
        search(segments, *query, k)
    ours, columns, today = (Latencies(wall=[], processor=[]) for _ in range(3))
    for number, query in enumerate(asked):
        found = measure(ours, partial(search, segments, *query, k))
        scores = measure(columns, partial(scipys.columns, by_term, *query, k))
        assert np.array_equal(found.scores[:k], scores), "the columns give other scores"
        if number < today_queries:
            hits = measure(today, partial(scipys.today, passages, *query, k))
            rows = (firsts[found.segments] + found.rows).tolist()
            ranking = [(scipys.name(row), score) for row, score in zip(rows, found.scores.tolist(), strict=True)]
            assert ranking[:k] == hits, "today's search gives another ranking"
    return Beside(ours=ours, columns=columns, today=today)


def _segments(folder: str) -> list[PostingsSegment]:
    return [PostingsSegment.open(path) for path in sorted(Path(folder).glob("0*"))]


def measure(into: Latencies, work: Callable[[], T]) -> T:
    """Return what the work returns, and note how long it took."""
    wall, processor = time.perf_counter(), time.thread_time()
    answer = work()
    into.processor.append((time.thread_time() - processor) * 1e3)
    into.wall.append((time.perf_counter() - wall) * 1e3)
    return answer


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (build, alone, beside)})
