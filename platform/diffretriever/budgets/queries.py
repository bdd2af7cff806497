"""The queries of a sweep's split as its folder keeps them: ids, texts and subwords."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from diffretriever.files import whole_file
from schemas.sweep import QUERIES_SCHEMA

QUERIES_FILE = "queries.parquet"


@dataclass(frozen=True, slots=True)
class SweptQuery:
    """A query with the subwords of its raw text, no special tokens among them."""

    id: str
    text: str
    token_ids: tuple[int, ...]


def read_queries(folder: Path, split: str) -> dict[str, SweptQuery]:
    """Read `<split>/queries.parquet` of the sweep in `folder`, by id in the order of the file.

    Raises:
        ValueError: no such file, or an id that occurs twice.
    """
    path = folder / split / QUERIES_FILE
    if not path.is_file():
        raise ValueError(f"{path} is not there: run the sweep again, it keeps the queries of every split")
    rows = parquet.read_table(path, schema=QUERIES_SCHEMA).to_pylist()
    queries = {row["query"]: SweptQuery(row["query"], row["text"], tuple(row["token_ids"])) for row in rows}
    if len(queries) != len(rows):
        raise ValueError(f"{path} has an id twice: run the sweep again")
    return queries


def write_queries(folder: Path, split: str, queries: Sequence[SweptQuery]) -> None:
    """Write `<split>/queries.parquet` of the sweep in `folder`, whole or not at all."""
    columns = {
        "query": [query.id for query in queries],
        "text": [query.text for query in queries],
        "token_ids": [list(query.token_ids) for query in queries],
    }
    with whole_file(folder / split / QUERIES_FILE) as stream:
        parquet.write_table(pa.table(columns, schema=QUERIES_SCHEMA), stream)
