"""Metadata over HTTP: filtered by, returned, and sent with passages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from diffretriever.collections import Passage
from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.metadata import Columns
from diffretriever.search import open_searcher
from tests.search.dense_cases import build_codes, build_postings
from tests.serving.serving_cases import PASSAGES, QUERIES, served

COLUMNS: Columns = {"year": "int64", "lang": "string", "day": "date", "at": "timestamp", "price": "float64"}


@pytest.fixture
def own_index(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    manifest = manifest_of(encoder).model_copy(update={"metadata": COLUMNS})
    made = PassageIndex.create(str(tmp_path / "index"), manifest)
    few = [
        Passage(p.id, p.title, p.text, {"year": 2000 + n, "lang": "en"} if n % 3 else {})
        for n, p in enumerate(PASSAGES[:20])
    ]
    vectors = encoder.encode_passages([p.title for p in few], [p.text for p in few]).to_arrow()
    Committer(made).commit({"all": write_block(made.uri, join_columns(text_table(few, "c", COLUMNS), vectors))}, [])
    build_codes(made)
    build_postings(made)
    return made


@pytest.fixture
def client(own_index: PassageIndex) -> Iterator[TestClient]:
    with served(own_index.uri) as made:
        yield made


def hits_of(client: TestClient, **body: Any) -> list[list[dict[str, Any]]]:
    answer = client.post("/search", json={"query": QUERIES, "k": 20, **body}).raise_for_status().json()
    return [result["hits"] for result in answer["results"]]


def test_filtered_searches_equal_those_of_a_job(client: TestClient, own_index: PassageIndex) -> None:
    assert client.get("/index").json()["metadata"] == COLUMNS
    searcher = open_searcher(own_index.uri)
    for condition in ("year >= 2010 AND lang = 'en'", "year IS NULL", "collection = 'c' AND id = 'd1'", "year > 9000"):
        for mode in ("dense", "hybrid", "bm25", "dense+sparse+bm25"):
            expected = searcher.search(QUERIES, k=20, modes=[mode], filter=condition)[mode]
            results = hits_of(client, mode=mode, filter=condition)
            assert [[(hit["id"], hit["score"]) for hit in hits] for hits in results] == expected
    (hit,) = hits_of(client, mode="dense", filter="id = 'd4'")[0]
    assert hit["metadata"] == {"year": 2004, "lang": "en", "day": None, "at": None, "price": None}


def test_metadata_is_added_replaced_and_returned(client: TestClient, own_index: PassageIndex) -> None:
    sent: dict[str, Any] = {
        "id": "new",
        "text": "heat of a wing",
        "metadata": {"year": 7, "lang": None, "day": "2020-02-29", "at": "2020-01-01T02:00:00+02:00", "price": 3},
    }
    added = {"added": 1, "replaced": 0, "unchanged": 0}
    assert client.post("/passages", json={"passages": [sent]}).json() == {**added, "version": 3}
    shown = {"year": 7, "lang": None, "day": "2020-02-29", "at": "2020-01-01T00:00:00+00:00", "price": 3.0}
    condition = "day = '2020-02-29' AND at < '2020-01-01T00:00:01Z' AND price = 3"
    assert [hit["metadata"] for hit in hits_of(client, mode="dense", filter=condition)[0]] == [shown]
    assert client.post("/passages", json={"passages": [sent]}).json() == {
        **added,
        "added": 0,
        "unchanged": 1,
        "version": 3,
    }
    sent["metadata"]["year"] = 8
    assert client.post("/passages", json={"passages": [sent]}).json()["replaced"] == 1
    assert hits_of(client, mode="dense", filter="year = 8")[0][0]["id"] == "new"


@pytest.mark.parametrize(
    ("metadata", "field", "message"),
    [
        ({"yaer": 1}, "passages.0.metadata.yaer", "Did you mean 'year'?"),
        ({"year": "2020"}, "passages.0.metadata.year", "is not of type int64"),
        ({"year": 1.5}, "passages.0.metadata.year", "is not of type int64"),
        ({"year": True}, "passages.0.metadata.year", "is not of type int64"),
        ({"year": 1 << 64}, "passages.0.metadata.year", "is not of type int64"),
        ({"day": "soon"}, "passages.0.metadata.day", "is not of type date"),
        ({"lang": ["en"]}, "passages.0.metadata.lang", "valid string"),
    ],
)
def test_metadata_without_a_column_or_of_another_type_is_rejected(
    client: TestClient, metadata: dict[str, Any], field: str, message: str
) -> None:
    answer = client.post("/passages", json={"passages": [{"id": "x", "text": "y", "metadata": metadata}]})
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert message in answer.json()["detail"] + answer.json()["fix"]


@pytest.mark.parametrize("condition", ["yaer > 1", "year > 'x'", "year >", "lower(lang) = 'x'", "x" * 4001])
def test_bad_filters_are_problems(client: TestClient, condition: str) -> None:
    answer = client.post("/search", json={"query": "a", "filter": condition})
    assert (answer.status_code, answer.json()["field"]) == (422, "filter")
    assert not answer.json()["detail"].startswith("filter"), "the field says so"
    assert "4000" in answer.json()["detail"] or "columns from `GET /index`" in answer.json()["fix"]
