"""TREC qrels files (`qid 0 docid relevance`), and the line parsing that they share with runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from diffretriever.collections.records import Lines, Qrels, RefusedError, TextFile, check_id, decode
from diffretriever.schemas.locations import StorePath

INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_QRELS_HEADER_ENDS = frozenset({"score", "relevance", "rel", "label"})

T = TypeVar("T")


def read_qrels(source: Path | StorePath | TextFile) -> Qrels:
    """Read qrels in BEIR's three columns (query, passage, relevance) or TREC's four; a header is optional.

    Raises:
        ValueError: a line is malformed or repeats a pair.
    """
    file = source if isinstance(source, TextFile) else TextFile.at(source)
    lines = columns_of(file)
    _, first = head = next(lines, (0, []))
    is_header = not first or first[-1].lower() in _QRELS_HEADER_ENDS
    return values_of(file, lines if is_header else chain([head], lines), partial(_qrels_line, len(first)))


def columns_of(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and columns of each line; raise `ValueError` for a line that is not valid text."""
    for line in Lines(file):
        try:
            yield line.number, decode(line).split()
        except RefusedError as refused:
            raise ValueError(f"{file.shown}:{line.number}: {refused}") from refused


def values_of(
    file: TextFile, lines: Iterable[tuple[int, list[str]]], parse: Callable[[list[str]], tuple[str, str, T]]
) -> dict[str, dict[str, T]]:
    """Return query id → passage id → value; raise `ValueError` for a malformed or repeated line."""
    values: dict[str, dict[str, T]] = {}
    for number, columns in lines:
        try:
            query_id, passage_id, value = parse(columns)
        except RefusedError as refused:
            raise ValueError(f"{file.shown}:{number}: {refused}") from refused
        of_query = values.setdefault(query_id, {})
        if passage_id in of_query:
            raise ValueError(f"{file.shown}:{number}: passage '{passage_id}' occurs twice for its query")
        of_query[passage_id] = value
    return values


def _qrels_line(width: int, columns: list[str]) -> tuple[str, str, int]:
    if len(columns) not in (3, 4):
        raise RefusedError(f"{len(columns)} columns instead of 3 (query, passage, relevance) or TREC's 4")
    if len(columns) != width:
        raise RefusedError(f"{len(columns)} columns, but the first line has {width}")
    query_id, passage_id, relevance = columns[0], columns[-2], columns[-1]
    check_id(query_id)
    check_id(passage_id)
    if not INTEGER.fullmatch(relevance):
        raise RefusedError(f"relevance '{relevance}' is not an integer")
    return query_id, passage_id, int(relevance)
