"""Metadata of records: their types and columns."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from diffretriever.collections import BadInputError, Collection, Passage, open_collection, scan
from diffretriever.collections.documents import as_collection
from diffretriever.collections.metadata import WithMetadata
from diffretriever.schemas.metadata import Columns
from tests.collections.test_tables import TABLES, write_table

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "one", "year": 2020, "lang": "en", "price": 1, "free": True, "tags": ["x", "y"]},
    {"id": "b", "text": "two", "year": None, "lang": "o'k", "price": 2.5, "free": False, "tags": []},
    {"id": "c", "text": "three"},
]
COLUMNS: Columns = {"year": "int64", "lang": "string", "price": "float64", "free": "bool"}
KEPT = [
    {"year": 2020, "lang": "en", "price": 1.0, "free": True},
    {"lang": "o'k", "price": 2.5, "free": False},
    {},
]


def typed(source: Collection, fields: tuple[str, ...] | None = None) -> WithMetadata:
    collection = WithMetadata(source, fields)
    return replace(collection, columns=scan(collection, "error", None).columns)


def kept(collection: Collection) -> list[Any]:
    return [r.metadata if isinstance(r, Passage) else r.reason for r in collection.records()]


CSV = "id,text,year,lang,price,free\na,one,2020,en,1,true\nb,two,,o'k,2.50,false\nc,three,,,,\n"


@pytest.mark.parametrize("end", [".jsonl", *TABLES])
def test_all_file_formats_have_typed_fields(end: str, tmp_path: Path) -> None:
    file = tmp_path / f"notes{end}"
    write_table(file, ROWS, CSV)
    found = scan(WithMetadata(open_collection(str(file))), "error", None)
    assert found.columns == COLUMNS
    assert found.left_out == (() if end == ".csv" else ("tags",))
    assert kept(typed(open_collection(str(file)))) == KEPT
    assert kept(typed(open_collection(str(file)), ("lang",))) == [
        {name: value for name, value in row.items() if name == "lang"} for row in KEPT
    ]
    assert kept(typed(open_collection(str(file)), ())) == [{}, {}, {}]


def test_values_of_other_libraries_are_converted() -> None:
    zone = timezone(timedelta(hours=2))
    row = {
        "n": np.int64(3),
        "f": np.float32(0.5),
        "t": pd.Timestamp("2020-01-01 12:00", tz=zone),
        "naive": datetime(2020, 1, 1, 12),  # noqa: DTZ001 - UTC is the default zone
        "d": date(2020, 1, 1),
        "nothing": math.nan,
        "never": pd.NaT,
        "vector": np.zeros(3),
    }
    collection = typed(as_collection([{"id": "a", "text": "x", **row}]))
    ((only),) = kept(collection)
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    assert only == {"n": 3, "f": 0.5, "t": noon - timedelta(hours=2), "naive": noon, "d": date(2020, 1, 1)}
    assert {type(value) for value in only.values()} == {int, float, datetime, date}
    assert collection.columns == dict(zip(only, ["int64", "float64", "timestamp", "timestamp", "date"], strict=True))


def test_row_numbers_of_pandas_are_not_a_field(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [*"wxyz"], "year": [1, 2, 3, 4], "cost": [Decimal("1.5"), *[None] * 3]})
    frame = frame.take([3, 1, 0]).query("year > 1").rename(index={3: 7})
    frame.to_csv(tmp_path / "c.csv")
    frame.to_parquet(tmp_path / "c.parquet")
    assert "__index_level_0__" in parquet.read_schema(tmp_path / "c.parquet").names
    for source in (as_collection(frame), *(open_collection(str(tmp_path / name)) for name in ("c.csv", "c.parquet"))):
        assert kept(typed(source)) == [{"year": 4}, {"year": 2}]


def test_an_object_of_metadata_is_flattened(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(
        '{"_id": "a", "text": "x", "metadata": {"url": "u", "year": 1, "tags": [1], "title": "no"}, "year": 2}\n'
    )
    assert kept(typed(open_collection(str(tmp_path / "c.jsonl")))) == [{"year": 2, "url": "u"}]


def test_types_fit_all_records(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("id,text,zip,mixed,flag,n\na,x,007,1,true,-3\nb,x,010,x,True,\nc,x,,2.5,,12\n")
    collection = typed(open_collection(str(tmp_path / "c.csv")))
    assert collection.columns == {"zip": "string", "mixed": "string", "flag": "bool", "n": "int64"}
    assert kept(collection)[0] == {"zip": "007", "mixed": "1", "flag": True, "n": -3}
    assert scan(WithMetadata(as_collection([{"text": "x", "n": None}])), "error", None).columns == {}


def test_a_record_of_another_type_is_bad(tmp_path: Path) -> None:
    lines = [{"id": str(n), "text": "x", "year": value} for n, value in enumerate([None, 1, 2.5, "three", True, [4]])]
    file = tmp_path / "c.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    collection = WithMetadata(open_collection(str(file)))
    with pytest.raises(BadInputError) as caught:
        scan(collection, "error", None)
    assert f"{file}:4: wrong type: 'year' is string, and float64 in other records or in the index" in str(caught.value)
    assert "--metadata" in str(caught.value)
    found = scan(collection, "quarantine", tmp_path / "bad.jsonl")
    assert (found.columns, found.n_kept, found.reasons) == ({"year": "float64"}, 4, {"wrong type": 2})
    assert [json.loads(each)["line"] for each in (tmp_path / "bad.jsonl").read_text().splitlines()] == [4, 5]
    passages = list(found.kept(replace(collection, columns=found.columns)))
    assert [p.metadata for p in passages] == [{}, {"year": 1.0}, {"year": 2.5}, {}]


def test_types_do_not_depend_on_parts(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    values: list[Any] = [1, 2, 3.5, "x", 4]
    file.write_text("".join(json.dumps({"id": str(n), "text": "x", "v": v}) + "\n" for n, v in enumerate(values)))
    source = open_collection(str(file))
    whole = scan(WithMetadata(source), "quarantine", tmp_path / "one.jsonl")
    with patch("diffretriever.collections.base._PART_BYTES", 40):
        joined = scan(WithMetadata(source), "quarantine", tmp_path / "two.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert joined.columns == whole.columns == {"v": "float64"}
    assert joined.reasons == {"wrong type": 1}


def test_columns_of_an_index_set_the_types() -> None:
    columns: Columns = {"year": "int64", "day": "date", "at": "timestamp", "f": "float64"}
    rows: list[dict[str, Any]] = [
        {"text": "1", "day": "2020-01-02", "at": "2020-01-02T03:04:05Z", "f": 1, "other": None},
        {"text": "2", "year": "x"},
        {"text": "3", "yaer": 1},
        {"text": "4", "year": 2.0},
        {"text": "5", "day": "soon"},
    ]
    found = kept(WithMetadata(as_collection(rows), None, columns))
    time = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert found[0] == {"day": date(2020, 1, 2), "at": time, "f": 1.0}
    reasons = [reason.partition(":")[0] for reason in found[1:]]
    assert reasons == ["wrong type", "unknown field", "wrong type", "wrong type"]
    assert "Did you mean 'year'?" in found[2]
    assert kept(WithMetadata(as_collection(rows), ("f",), columns))[1:] == [{}] * 4


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("my field", 1, "contain only ASCII letters"),
        ("_x", 1, "must begin with an ASCII letter"),
        ("digest", 1, "is reserved for the index"),
        ("Reps", 1, "is reserved for the index"),
        ("not", 1, "is a keyword of filters"),
        ("n", 1 << 63, "64 bits do not hold"),
        ("s", "\ud800", "lone surrogate: in s"),
    ],
)
def test_invalid_names_and_values_are_rejected(name: str, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        typed(as_collection([{"text": "x", name: value}]))
    if value == 1:
        assert "--metadata none" in str(caught.value)
    assert kept(typed(as_collection([{"text": "x", name: value}]), ())) == [{}]


def test_digests_cover_stored_metadata() -> None:
    plain = Passage("a", "t", "x")
    assert Passage("a", "t", "x", {}, {"year": 1}).digest == plain.digest
    digests = [
        Passage("a", "t", "x", kept).digest
        for kept in ({}, {"n": 1}, {"n": "1"}, {"n": True}, {"n": 1.5}, {"m": 1}, {"d": date(2020, 1, 1)})
    ]
    assert len(set(digests)) == len(digests)
    assert Passage("a", "t", "x", {"a": 1, "b": 2}).digest == Passage("a", "t", "x", {"b": 2, "a": 1}).digest
