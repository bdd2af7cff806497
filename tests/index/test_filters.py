"""Filters: syntax, error messages and the passages that Lance selects."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from diffretriever.collections import Passage
from diffretriever.index.filters import MAX_CHARS, FilterError, condition_of
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.retriever import Bm25Retriever

COLUMNS: Columns = {
    "Year": "int64",
    "year": "int64",
    "order": "string",
    "day": "date",
    "at": "timestamp",
    "free": "bool",
    "price": "float64",
}
ROWS: list[dict[str, Any]] = [
    {"Year": 1, "year": 2020, "order": "o'k \\ %", "free": True, "price": -2.5e-300, "day": date(2020, 2, 29)},
    {"year": -5, "order": "", "free": False, "price": 1e16, "at": datetime(2020, 1, 1, 12, tzinfo=UTC)},
    {"year": 2**53 + 1, "order": "ü", "day": date(2021, 1, 1), "price": 3.0},
    {},
]
ADMITTED: dict[str, list[int]] = {
    "year >= 2020": [0, 2],
    "year = 9007199254740993": [2],
    "year<>2020": [1, 2],
    "year NOT IN (2020, -5)": [2],
    "year NOT BETWEEN -5 AND 2020": [2],
    "year IS NULL": [3],
    "year IS NOT NULL": [0, 1, 2],
    "NOT year = 2020": [1, 2],
    "year = 2020 OR year = -5 AND free": [0],
    "(year = 2020 OR year = -5) AND free = FALSE": [1],
    "free": [0],
    "order = 'o''k \\ %'": [0],
    "order == 'ü'": [2],
    "order NOT LIKE 'o%'": [1, 2],
    "day > '2020-02-28'": [0, 2],
    "day = date '2021-01-01'": [2],
    "at < '2020-01-01T13:00:00+01:30'": [],
    "at <= TIMESTAMP '2020-01-01T14:00:00+02:00'": [1],
    "price < -1e-300": [0],
    "price > 3 AND price < 1.1e16": [1],
    "id IN ('p0', 'p3')": [0, 3],
    "collection = 'c''s'": [0, 1, 2, 3],
    " collection  LIKE\n'x%' ": [],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    manifest = bm25_manifest(Bm25Retriever()).model_copy(update={"metadata": COLUMNS})
    made = PassageIndex.create(str(tmp_path_factory.mktemp("filters") / "index"), manifest)
    passages = [Passage(f"p{number}", "", "text", row) for number, row in enumerate(ROWS)]
    Committer(made).commit({"all": write_block(made.uri, text_table(passages, "c's", COLUMNS))}, [])
    return made


@pytest.mark.parametrize("text", ADMITTED)
def test_a_filter_selects_the_matching_passages(index: PassageIndex, text: str) -> None:
    part = IndexPart.filtered(index, condition_of(text, index.manifest.metadata))
    ids = [i for batch in part.batches(["id"], 2) for i in batch.column("id").to_pylist()]
    assert ids == [f"p{number}" for number in ADMITTED[text]]
    assert len(part) == len(ids)
    assert [len(part.fragments()), len(part.order.by_row)] == [min(1, len(ids)), len(ids)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a column's name at character 1, found the end"),
        ("year >", "expected a value at character 7"),
        ("yaer = 1", "unknown column 'yaer'. Did you mean 'year'?"),
        ("text = 'x'", "unknown column 'text'"),
        ("upper(order) = 'X'", "unknown column 'upper'"),
        ("order = x", "'order' is string: write a text in single quotes at character 9, not 'x'"),
        ("year = '2020'", "'year' is int64: write a whole number of 64 bits at character 8, not '2020'"),
        ("year = 99999999999999999999", "'year' is int64"),
        ("price = 1e999", "'price' is float64: write a number"),
        ("free > true", "compare it with = or <>"),
        ("free = 1", "write true or false"),
        ("day > 'soon'", "write a day such as '2020-12-31'"),
        ("at > 'noon'", "write a time such as"),
        ("year LIKE '2%'", "LIKE is for texts, and 'year' is int64"),
        ("year = year", "expected a value at character 8, found 'year'"),
        ("year", "expected one of =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS NULL"),
        ("year IN ()", "not ')'"),
        ("year BETWEEN 1, 2", "expected 'AND'"),
        ("(year = 1", "expected ')' at character 10, found the end"),
        ("year = 1 2", "expected AND or OR or the end at character 10"),
        ("year = 1; DROP TABLE x", "unexpected ';' at character 9"),
        ('order = "x"', "write texts in single quotes"),
        ("`year` = 1", "names of columns without quotes"),
        ("order = 'x", 'unexpected "\'" at character 9'),
        ("(" * 40 + "free" + ")" * 40, "more than 32 parentheses"),
        ("NOT " * 40 + "free", "more than 32 parentheses or NOT"),
        ("free OR " * MAX_CHARS + "free", "use at most 20,000"),
    ],
)
def test_invalid_filters_are_rejected(text: str, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        condition_of(text, COLUMNS)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value).replace(text, "")
    assert str(caught.value).startswith("filter: ")


def test_filters_of_many_values_are_accepted(index: PassageIndex) -> None:
    for text in (f"id IN ({', '.join(repr(f'p{n}') for n in range(2000))})", " OR ".join(["year = 2020"] * 1300)):
        assert len(IndexPart.filtered(index, condition_of(text, COLUMNS))) == (4 if "IN" in text else 1)
