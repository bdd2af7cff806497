"""Collections of documents in memory."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from diffretriever.collections import Passage, open_collection
from diffretriever.collections.documents import as_collection, text_id

A, B = Passage(text_id("", "first"), "", "first"), Passage(text_id("", "second"), "", "second")


@pytest.mark.parametrize(
    ("documents", "fields", "expected"),
    [
        (["first", "second"], None, [A, B]),
        (("first", "second", "first"), None, [A, B]),
        ((text for text in ("first", "second")), None, [A, B]),
        ([{"text": "first"}, {"contents": "second", "title": None}], None, [A, B]),
        ([{"_id": "a", "text": "t", "title": "T", "url": "u"}, B], None, [Passage("a", "T", "t"), B]),
        ([{"docid": 7, "body": "t", "head": "H"}], {"text": "body", "title": "head"}, [Passage("7", "H", "t")]),
        (pd.DataFrame({"id": [1], "body": ["x"]}), {"text": "body"}, [Passage("1", "", "x")]),
        (pa.table({"text": ["first", "second"]}), None, [A, B]),
        (pd.DataFrame({"key": ["k"], "text": ["x"], "title": [None]}), {"id": "key"}, [Passage("k", "", "x")]),
    ],
)
def test_documents_are_passages(documents: Any, fields: dict[str, str] | None, expected: list[Passage]) -> None:
    collection = as_collection(documents, fields=fields)
    assert list(collection.records()) == expected
    assert list(pickle.loads(pickle.dumps(collection)).records()) == list(collection.records())
    assert collection.splits() == []


@pytest.mark.parametrize("name", ["id", "_id", "docid", "docno", "doc_id", "pid"])
def test_id_fields_of_other_tools(name: str, tmp_path: Path) -> None:
    row = {name: "FT911-3", "text": "x"}
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    (tmp_path / "d.csv").write_text(f"{name},text\nFT911-3,x\n")
    files = [open_collection(str(tmp_path / file)) for file in ("c.jsonl", "d.csv")]
    for collection in (as_collection(pd.DataFrame([row])), as_collection([row]), *files):
        (record,) = collection.records()
        assert record == Passage("FT911-3", "", "x")
        assert isinstance(record, Passage)
        assert not record.extra


@pytest.mark.parametrize(
    ("documents", "fields", "message"),
    [
        ({"a": "text"}, None, "a single mapping: give a list"),
        (5, None, "unsupported type int: give a list of texts or mappings"),
        (b"text", None, "unsupported type bytes"),
        ([], None, "the list is empty"),
        (["x"], {"txt": "body"}, r"a document has no 'txt'.* 'text'"),
        ("prune roses", None, "a single text: give a list"),
    ],
)
def test_unsupported_documents_are_rejected(documents: Any, fields: dict[str, str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_collection(documents, fields=fields)
