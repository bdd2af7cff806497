"""The queries of a sweep's split as its folder keeps them: ids, texts, subwords, and what encoding them gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import feather, parquet

from diffretriever.encoders.representations import Representations
from diffretriever.files import whole_file
from schemas.sweep import QUERIES_SCHEMA

QUERIES_FILE = "queries.parquet"
ENCODED_FOLDER = "encoded"


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


def has_encoded(folder: Path, split: str, budget: int) -> bool:
    """Return whether the sweep in `folder` still has the queries of `split` as K_q = `budget` encoded them."""
    return len(_encoded_files(folder, split, budget)) == 1


def read_encoded(folder: Path, split: str, budget: int) -> Representations:
    """Read the queries of a split as K_q = `budget` encoded them, in the order of `queries.parquet`.

    Raises:
        ValueError: they are not there, or are not as many as the queries.
    """
    files = _encoded_files(folder, split, budget)
    if len(files) != 1:
        place = folder / split / ENCODED_FOLDER
        raise ValueError(f"{place} has no queries of K_q = {budget}: run the sweep again, it keeps them")
    found = Representations.from_arrow(feather.read_table(files[0]))
    if len(found) != parquet.read_metadata(folder / split / QUERIES_FILE).num_rows:
        raise ValueError(f"{files[0]} is not of the queries in {QUERIES_FILE}: run the sweep again")
    return found


def _encoded_files(folder: Path, split: str, budget: int) -> list[Path]:
    return sorted((folder / split / ENCODED_FOLDER).glob(f"q{budget}-*.arrow"))
