"""TREC runs: ranked passages of queries, and their files (`qid Q0 docid rank score tag`).

Files are read in bulk. If that fails, they are read line by line, to name the malformed line.

Legend: F hits of all queries.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from diffretriever.collections.records import BOM, RefusedError, TextFile, check_id, check_ids
from diffretriever.collections.trec import INTEGER, columns_of, values_of
from diffretriever.core.files import whole_file
from diffretriever.schemas.locations import StorePath
from diffretriever.vectors.hits import Hit, Hits, Passages, ranked_hits

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LINES_AT_ONCE = 1 << 18
_TEXT = pa.large_string()
_CODED = pa.dictionary(pa.int32(), pa.string())
_COLUMNS = {"query": _CODED, "Q0": _CODED, "passage": _CODED, "rank": _CODED, "score": pa.float64(), "tag": _CODED}
_FIRST_BYTES = 4096
_PLAIN_FROM, _PLAIN_TO = 1e-4, 1e9
"""Range in which Arrow formats fractional numbers like Python."""


@dataclass(frozen=True, eq=False)
class Run(Mapping[str, dict[str, float]]):
    """The ranked passages of some queries: query id → passage id → score, best first.

    Attributes:
        query_ids: unique.
        hits: of these queries, best first.
    """

    query_ids: Sequence[str]
    hits: Hits

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[str, float]]) -> Self:
        """Rank passages by the platform's rule: score descending, then id ascending.

        Raises:
            ValueError: a score is NaN.
        """
        hits = Hits.of([list(found.items()) for found in scores.values()])
        columns = hits.queries(), hits.numbers_F, hits.scores_F
        return cls(list(scores), ranked_hits(hits.passages, len(hits), columns))

    @classmethod
    def of_lists(cls, lists: Iterable[tuple[str, Sequence[Hit]]]) -> Self:
        """Return the run of queries whose hits are ranked already, best first."""
        pairs = list(lists)
        return cls([query_id for query_id, _ in pairs], Hits.of(hits for _, hits in pairs))

    def __getitem__(self, query_id: str) -> dict[str, float]:
        return dict(self.hits[self._places[query_id]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.query_ids)

    def __len__(self) -> int:
        return len(self.query_ids)

    def without_self(self) -> Run:
        """Return the run without each query's own passage (same id), as BEIR does."""
        return Run(self.query_ids, self.hits.without(self.query_ids))

    def of_queries(self, query_ids: Sequence[str]) -> Run:
        """Return the run of these queries, in this order; unknown queries have no passages."""
        places = np.array([self._places.get(query_id, -1) for query_id in query_ids], np.int64)
        return Run(query_ids, self.hits.of_queries(places))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {query_id: place for place, query_id in enumerate(self.query_ids)}


def write_run(path: Path | StorePath, parts: Iterable[Run], tag: str) -> None:
    """Write runs of different queries one after the other, ranks from 1.

    Scores are written without exponents and read back as the same float. The file appears when complete.

    Raises:
        ValueError: an id or the tag is not valid in a run, a score is not finite, hits are not ranked by score, or a
            pair is repeated.
    """
    check_id(tag)
    written: set[str] = set()
    with whole_file(path) as stream:
        for run in parts:
            for query_id in run.query_ids:
                check_id(query_id)
                if query_id in written:
                    raise ValueError(f"query '{query_id}' occurs twice in the hits to write")
                written.add(query_id)
            _check_hits(run)
            for lines in _lines(run, tag):
                stream.write(lines)


def read_run(path: Path | StorePath) -> Run:
    """Read a run of six columns, plain or `.gz`. Passages are ranked by score; the rank column is ignored.

    Raises:
        ValueError: a line is malformed, a score is not finite, or a pair is repeated.
    """
    file = TextFile.at(path)
    run = _read_in_bulk(file)
    return Run.of(values_of(file, columns_of(file), _run_line)) if run is None else run


def _check_hits(run: Run) -> None:
    hits = run.hits
    used_P = np.zeros(len(hits.passages), bool)
    used_P[hits.numbers_F] = True
    check_ids(hits.passages.ids.filter(pa.array(used_P)).to_pylist())
    queries_F = hits.queries()
    wrong = np.flatnonzero(~np.isfinite(hits.scores_F))
    if len(wrong):
        query_id, passage_id = run.query_ids[queries_F[wrong[0]]], hits.passages.ids[hits.numbers_F[wrong[0]]]
        raise ValueError(f"query '{query_id}', passage '{passage_id}': score {hits.scores_F[wrong[0]]} is not finite")
    wrong = np.flatnonzero((hits.scores_F[1:] > hits.scores_F[:-1]) & (queries_F[1:] == queries_F[:-1]))
    if len(wrong):
        raise ValueError(f"the hits of query '{run.query_ids[queries_F[wrong[0]]]}' are not ranked by score")
    twice = _repeated(hits)
    if twice is not None:
        query, number = twice
        raise ValueError(f"passage '{hits.passages.ids[number]}' occurs twice for query '{run.query_ids[query]}'")


def _repeated(hits: Hits) -> tuple[int, int] | None:
    pairs_F = np.sort(hits.queries() * len(hits.passages) + hits.numbers_F)
    wrong = np.flatnonzero(np.diff(pairs_F) == 0)
    return divmod(int(pairs_F[wrong[0]]), len(hits.passages)) if len(wrong) else None


def _lines(run: Run, tag: str) -> Iterator[memoryview]:
    hits = run.hits
    heads = pa.array([f"{query_id} Q0 " for query_id in run.query_ids], _TEXT)
    longest = int(np.diff(hits.offsets).max(initial=0))
    ranks = pa.array([f" {rank} " for rank in range(1, longest + 1)], _TEXT)
    ranks_F = np.arange(len(hits.numbers_F)) - np.repeat(hits.offsets[:-1], np.diff(hits.offsets))
    queries_F = hits.queries()
    for start in range(0, len(hits.numbers_F), _LINES_AT_ONCE):
        rows = slice(start, start + _LINES_AT_ONCE)
        lines = pc.binary_join_element_wise(
            heads.take(pa.array(queries_F[rows])),
            hits.passages.ids.take(pa.array(hits.numbers_F[rows])),
            ranks.take(pa.array(ranks_F[rows])),
            _decimals(hits.scores_F[rows]),
            pa.scalar(f" {tag}\n", _TEXT),
            pa.scalar("", _TEXT),
        )
        _, ends, letters = lines.buffers()
        yield memoryview(letters)[: np.frombuffer(ends, np.int64)[len(lines)]]


def _decimals(scores_F: np.ndarray) -> pa.LargeStringArray:
    """Return the shortest decimals without exponent that read back as the same floats."""
    texts = pa.array(scores_F).cast(_TEXT)
    sizes_F = np.abs(scores_F)
    other_F = (scores_F == np.rint(scores_F)) | (sizes_F < _PLAIN_FROM) | (sizes_F >= _PLAIN_TO)
    values, places = np.unique(scores_F[other_F].view(np.int64), return_inverse=True)
    written = [format(Decimal(repr(value)), "f") for value in values.view(np.float64).tolist()]
    return pc.replace_with_mask(texts, pa.array(other_F), pa.array(written, _TEXT).take(pa.array(places)))


def _read_in_bulk(file: TextFile) -> Run | None:
    """Return the run of a file with single spaces or tabs between columns; None for any other file."""
    try:
        data = file.read().removeprefix(BOM).replace(b"\r\n", b"\n")
        # A carriage return alone ends a line here, and a column there.
        if not data or b"\r" in data:
            return None
        columns = _parsed(data)
    except (pa.ArrowInvalid, RefusedError, EOFError, OSError, zlib.error):
        return None
    scores_F = columns["score"].to_numpy(zero_copy_only=False)
    queries, (passages, numbers_F) = columns["query"], Passages.numbered(columns["passage"])
    if not np.isfinite(scores_F).all():
        return None
    hits = ranked_hits(passages, len(queries.dictionary), (queries.indices.to_numpy(), numbers_F, scores_F))
    return None if _repeated(hits) else Run(queries.dictionary.to_pylist(), hits)


def _parsed(data: bytes) -> dict[str, pa.Array]:
    table = csv.read_csv(
        io.BytesIO(data),
        read_options=csv.ReadOptions(column_names=list(_COLUMNS)),
        parse_options=csv.ParseOptions(delimiter="\t" if b"\t" in data[:_FIRST_BYTES] else " ", quote_char=False),
        convert_options=csv.ConvertOptions(column_types=_COLUMNS),
    )
    columns = {name: _one_chunk(table.column(name)) for name in _COLUMNS}
    for name in ("query", "Q0", "passage", "tag"):
        check_ids(columns[name].dictionary.to_pylist())
    if not all(INTEGER.fullmatch(rank) for rank in columns["rank"].dictionary.to_pylist()):
        raise RefusedError("a rank is not an integer")
    return columns


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.unify_dictionaries().combine_chunks()
    return combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined


def _run_line(columns: list[str]) -> tuple[str, str, float]:
    if len(columns) != 6:
        raise RefusedError(f"{len(columns)} columns instead of 6 (qid Q0 docid rank score tag)")
    query_id, _, passage_id, rank, score, _ = columns
    check_id(query_id)
    check_id(passage_id)
    if not INTEGER.fullmatch(rank):
        raise RefusedError(f"rank '{rank}' is not an integer")
    if not _NUMBER.fullmatch(score) or not math.isfinite(float(score)):
        raise RefusedError(f"score '{score}' is not a finite number")
    return query_id, passage_id, float(score)
