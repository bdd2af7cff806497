"""Passages are added, replaced and deleted while others search, each response reading one version."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from diffretriever.collections import Passage
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.search import open_searcher
from tests.serving.serving_cases import PASSAGES, QUERIES, served, write_passages


@pytest.fixture
def client(own_index: PassageIndex) -> Iterator[TestClient]:
    with served(own_index.uri, limits={"max_passages": 3}) as made:
        yield made


def test_added_passages_equal_those_of_an_encode_job(
    client: TestClient, own_index: PassageIndex, encoder: Encoder
) -> None:
    sent = [
        {"id": "n1", "title": "", "text": "heat of a wing", "collection": "new"},
        {"id": "d3", "title": "changed", "text": "lance slab"},
        {"id": "d4", "title": PASSAGES[4].title, "text": PASSAGES[4].text, "collection": "c"},
    ]
    answer = client.post("/passages", json={"passages": sent}).raise_for_status().json()
    assert answer == {"added": 1, "replaced": 1, "unchanged": 1, "version": own_index.version + 1}
    own_index.refresh()
    assert len(own_index) == 61
    assert own_index.passages(["d3"]) == {
        "d3": {"title": "changed", "text": "lance slab", "collection": "served", "metadata": {}}
    }
    body = client.post("/search", json={"query": QUERIES, "k": 61, "mode": "dense"}).raise_for_status().json()
    assert body["index"]["version"] == answer["version"]
    expected = open_searcher(own_index.uri).search(QUERIES, k=61, modes=["dense"])["dense"]
    assert [[(hit["id"], hit["score"]) for hit in each["hits"]] for each in body["results"]] == expected
    (stored,) = own_index.dataset.to_table(["n_tokens"], filter="id = 'n1'").to_pylist()
    assert stored["n_tokens"] == encoder.encode_passages([""], ["heat of a wing"]).n_tokens[0]


def test_a_deleted_passage_is_not_found(client: TestClient, own_index: PassageIndex) -> None:
    answer = client.delete("/passages/d7").raise_for_status().json()
    assert answer == {"deleted": 1, "version": own_index.version + 1}
    hits = client.post("/search", json={"query": "heat", "k": 60, "mode": "dense"}).json()["results"][0]["hits"]
    assert "d7" not in {hit["id"] for hit in hits}
    assert len(hits) == 59
    response = client.delete("/passages/d7")
    assert response.status_code == 404
    assert response.json()["type"] == "urn:diffretriever:problem:not-found"


@pytest.mark.parametrize("path", ["a'%20OR%20'1'='1", "..%2F..%2Fetc", "%00", "a/b", "%ff", "%F0%9F%98%80"])
def test_unusual_ids_delete_nothing(client: TestClient, own_index: PassageIndex, path: str) -> None:
    assert client.delete(f"/passages/{path}").status_code == 404
    own_index.refresh()
    assert len(own_index) == 60


@pytest.mark.parametrize(
    ("passages", "field", "message"),
    [
        ([], "passages", "at least 1"),
        ([{"id": f"x{i}", "text": "a"} for i in range(4)], "passages", "at most 3"),
        ([{"id": "x", "text": "a"}, {"id": "x", "text": "b"}], "passages.1.id", "twice"),
        ([{"id": "x", "text": "a"}, {"id": "a b", "text": "b"}], "passages.1", "whitespace"),
        ([{"id": "x", "text": " "}], "passages.0", "blank"),
        ([{"id": "x", "text": "a\x00"}], "passages.0", "NUL"),
    ],
)
def test_a_bad_passage_rejects_the_whole_request(
    client: TestClient, own_index: PassageIndex, passages: list[dict[str, str]], field: str, message: str
) -> None:
    refused = client.post("/passages", json={"passages": passages})
    assert refused.status_code == 422
    assert refused.json()["field"] == field
    assert message in refused.json()["detail"] + refused.json()["fix"]
    before = own_index.version
    own_index.refresh()
    assert own_index.version == before


def test_a_locked_index_is_a_problem_with_retry_after(client: TestClient, own_index: PassageIndex) -> None:
    with WriterLock(own_index.uri):
        for refused in (
            client.post("/passages", json={"passages": [{"id": "x", "text": "a"}]}),
            client.delete("/passages/d1"),
        ):
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
    assert client.delete("/passages/d1").status_code == 200


def test_responses_during_writes_read_one_version(
    client: TestClient, own_index: PassageIndex, encoder: Encoder
) -> None:
    first = own_index.version
    answers: list[tuple[int, int, int]] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            body = client.post("/search", json={"query": ["heat", "wing"], "k": 80, "mode": "dense"}).json()
            for result in body["results"]:
                new = sum(hit["id"].startswith("n") for hit in result["hits"])
                answers.append((body["index"]["version"], body["index"]["rows"], new))

    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(6):
        if number % 2:
            write_passages(encoder, own_index.uri, [Passage(f"n{number}", "", "heat wing")])
        else:
            sent = {"passages": [{"id": f"n{number}", "text": "heat wing"}]}
            client.post("/passages", json=sent).raise_for_status()
    done.set()
    asking.join()
    assert {version for version, _, _ in answers} > {first}
    assert all(new == version - first and rows == 60 + new for version, rows, new in answers)


def test_a_passage_that_the_encoder_rejects_is_a_problem_with_the_reason(
    client: TestClient, own_index: PassageIndex, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object) -> None:
        raise ValueError("no room for the text")

    monkeypatch.setattr(type(encoder.preparer), "prepare_passages", reject)
    refused = client.post("/passages", json={"passages": [{"id": "n1", "text": "heat of a wing"}]})
    assert (refused.status_code, refused.json()["field"]) == (422, "passages")
    assert "no room for the text" in refused.json()["detail"]
    assert PassageIndex.open(own_index.uri).version == own_index.version


def test_a_full_disk_rejects_writes_but_not_searches(
    client: TestClient, own_index: PassageIndex, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", own_index.uri)

    with monkeypatch.context() as patch:
        patch.setattr("diffretriever.serving.ingest.write_block", refuse)
        answer = client.post("/passages", json={"passages": [{"id": "n1", "text": "heat of a wing"}]})
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the disk of the index is full; nothing was written"
    assert int(answer.headers["Retry-After"]) == 60
    assert own_index.uri in caplog.text
    assert own_index.uri not in answer.text
    client.post("/search", json={"query": "heat", "k": 3, "mode": "dense"}).raise_for_status()
