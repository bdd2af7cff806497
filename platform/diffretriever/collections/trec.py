"""TREC files: runs (`qid Q0 docid rank score tag`) and relevance judgements (`qid 0 docid relevance`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from diffretriever.collections.base import Qrels, Run
from diffretriever.collections.records import MAX_PASSAGE_BYTES, RefusedError, TextFile, check_id, decode, read_lines
from diffretriever.files import whole_file
from schemas.places import StorePath

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_QRELS_HEADER_ENDS = frozenset({"score", "relevance", "rel", "label"})

T = TypeVar("T")


def read_run(path: Path | StorePath) -> Run:
    """Read a run of six columns, plain or `.gz`. What ranks a passage is its score, not its rank.

    Raises:
        ValueError: A line is malformed, a score is not finite, or a query has a passage twice.
    """
    run: Run = {}
    file = TextFile.at(path)
    for number, columns in _columns(file):
        try:
            query_id, passage_id, score = _run_line(columns)
            _put_once(run.setdefault(query_id, {}), passage_id, score)
        except RefusedError as refused:
            raise ValueError(f"{file.shown}:{number}: {refused}") from refused
    return run


def write_run(path: Path | StorePath, hits: Iterable[tuple[str, Sequence[tuple[str, float]]]], tag: str) -> None:
    """Write ranked hits, (query id, [(passage id, score), ...]) best first, ranks from 1.

    Scores are written without exponents and read back as the same float. The file appears when complete.

    Raises:
        ValueError: An id or the tag cannot stand in a run, a score is not finite, hits are not ranked by score, or a
            pair occurs twice.
    """
    check_id(tag)
    written: set[str] = set()
    with whole_file(path) as stream:
        for query_id, ranked in hits:
            check_id(query_id)
            if query_id in written:
                raise ValueError(f"query '{query_id}' occurs twice in the hits to write")
            written.add(query_id)
            stream.writelines(_ranked_lines(query_id, ranked, tag))


def read_qrels(path: Path | StorePath) -> Qrels:
    """Read judgements of three columns (BEIR: query, passage, relevance) or TREC's four, header or not.

    Raises:
        ValueError: A line is malformed or judges a pair twice; the message names file and line.
    """
    return read_qrels_file(TextFile.at(path))


def read_qrels_file(file: TextFile) -> Qrels:
    """Read judgements as `read_qrels` does, from a file that may be shown by another name."""
    qrels: Qrels = {}
    width = 0
    for number, columns in _columns(file):
        if width == 0:
            width = len(columns)
            if columns[-1].lower() in _QRELS_HEADER_ENDS:
                continue
        try:
            query_id, passage_id, relevance = _qrels_line(columns, width)
            _put_once(qrels.setdefault(query_id, {}), passage_id, relevance)
        except RefusedError as refused:
            raise ValueError(f"{file.shown}:{number}: {refused}") from refused
    return qrels


def write_qrels(path: Path | StorePath, qrels: Qrels) -> None:
    """Write judgements in TREC's four columns. The file appears when complete."""
    with whole_file(path) as stream:
        for query_id, judged in qrels.items():
            check_id(query_id)
            for passage_id, relevance in judged.items():
                check_id(passage_id)
                stream.write(f"{query_id} 0 {passage_id} {relevance}\n".encode())


def _columns(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    for line in read_lines(file, MAX_PASSAGE_BYTES):
        try:
            yield line.number, decode(line).split()
        except RefusedError as refused:
            raise ValueError(f"{file.shown}:{line.number}: {refused}") from refused


def _ranked_lines(query_id: str, ranked: Sequence[tuple[str, float]], tag: str) -> Iterator[bytes]:
    scores: dict[str, float] = {}
    best = math.inf
    for rank, (passage_id, value) in enumerate(ranked, start=1):
        score = float(value)
        check_id(passage_id)
        if not math.isfinite(score):
            raise ValueError(f"query '{query_id}', passage '{passage_id}': score {score} is not finite")
        if score > best:
            raise ValueError(f"the hits of query '{query_id}' are not ranked by score")
        best = score
        _put_once(scores, passage_id, score)
        # The shortest decimal that reads back as the same float, without an exponent.
        decimal = format(Decimal(repr(score)), "f")
        yield f"{query_id} Q0 {passage_id} {rank} {decimal} {tag}\n".encode()


def _put_once(values: dict[str, T], passage_id: str, value: T) -> None:
    if passage_id in values:
        raise RefusedError(f"passage '{passage_id}' occurs twice for its query")
    values[passage_id] = value


def _run_line(columns: list[str]) -> tuple[str, str, float]:
    if len(columns) != 6:
        raise RefusedError(f"{len(columns)} columns instead of 6 (qid Q0 docid rank score tag)")
    query_id, _, passage_id, rank, score, _ = columns
    check_id(query_id)
    check_id(passage_id)
    if not _INTEGER.fullmatch(rank):
        raise RefusedError(f"rank '{rank}' is not an integer")
    if not _NUMBER.fullmatch(score) or not math.isfinite(float(score)):
        raise RefusedError(f"score '{score}' is not a finite number")
    return query_id, passage_id, float(score)


def _qrels_line(columns: list[str], width: int) -> tuple[str, str, int]:
    if len(columns) not in (3, 4):
        raise RefusedError(f"{len(columns)} columns instead of 3 (query, passage, relevance) or TREC's 4")
    if len(columns) != width:
        raise RefusedError(f"{len(columns)} columns, but the first line has {width}")
    query_id, passage_id, relevance = columns[0], columns[-2], columns[-1]
    check_id(query_id)
    check_id(passage_id)
    if not _INTEGER.fullmatch(relevance):
        raise RefusedError(f"relevance '{relevance}' is not an integer")
    return query_id, passage_id, int(relevance)
