"""Tables as collections: CSV, JSON, Parquet and Arrow."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from diffretriever.collections import BadInputError, BadRecord, Passage, open_collection, scan

ROWS: list[dict[str, Any]] = [
    {"key": "a", "body": 'one, "two"\nthree', "head": "H"},
    {"key": "b", "body": "ünï", "head": ""},
]
FIELDS = {"id": "key", "text": "body", "title": "head"}
PASSAGES = [Passage("a", "H", 'one, "two"\nthree'), Passage("b", "", "ünï")]


CSV = '\ufeffkey,body,head\na,"one, ""two""\nthree",H\nb,ünï,\n'
TABLES = (".csv", ".json", ".parquet", ".arrow", ".feather")


def write_table(file: Path, rows: list[dict[str, Any]], csv: str) -> None:
    """Write rows in the format of the suffix, or the text `csv`."""
    table = pa.Table.from_pylist(rows)
    if file.suffix in (".csv", ".jsonl", ".json"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        file.write_text({".csv": csv, ".jsonl": lines, ".json": json.dumps(rows)}[file.suffix], "utf-8")
    elif file.suffix == ".parquet":
        parquet.write_table(table, file)
    else:
        feather.write_feather(table, str(file), compression="zstd" if file.suffix == ".feather" else "uncompressed")


@pytest.mark.parametrize("end", TABLES)
def test_rows_are_passages(end: str, tmp_path: Path) -> None:
    file = tmp_path / f"notes{end}"
    write_table(file, ROWS, CSV)
    collection = open_collection(str(file), FIELDS)
    assert list(collection.records()) == PASSAGES
    assert list(pickle.loads(pickle.dumps(collection)).records()) == PASSAGES
    assert (collection.name, collection.splits(), collection.location()) == ("notes", [], str(file))
    assert scan(collection, "error", None).n_kept == 2
    assert collection.inputs() == [file]
    state = collection.source_state()
    file.write_bytes(file.read_bytes() + b" ")
    assert collection.source_state() != state
    for read in (collection.queries, collection.qrels):
        with pytest.raises(ValueError, match="no split 'test'"):
            read("test")


def test_invalid_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("id,text\na,one, two\nb\nc,fine\nd,\n")
    records = list(open_collection(str(tmp_path / "c.csv")).records())
    assert [r.line for r in records if isinstance(r, BadRecord)] == [1, 2, 4]
    with pytest.raises(BadInputError, match=r"c.csv:1: wrong column count: quote values with commas"):
        scan(open_collection(str(tmp_path / "c.csv")), "error", None)
    (tmp_path / "d.csv").write_bytes(b"id,text\na,\xe9t\xe9\n")
    with pytest.raises(ValueError, match=r"d.csv:\d: not CSV in UTF-8"):
        list(open_collection(str(tmp_path / "d.csv")).records())
    (tmp_path / "e.json").write_text('{"id": "a", "text": "x"}')
    with pytest.raises(ValueError, match=r"e.json cannot be used: it is not a list of documents"):
        list(open_collection(str(tmp_path / "e.json")).records())
