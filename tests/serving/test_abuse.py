"""Hostile requests are rejected with a problem, and the next request is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from diffretriever.index.table import PassageIndex
from diffretriever.schemas.serve import EncodeRequest, IngestRequest, Problem, SearchRequest
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from tests.serving.serving_cases import local_service

STATIC = Path(__file__).resolve().parents[2] / "serve" / "static"


@pytest.fixture(scope="module")
def default(index: PassageIndex) -> Iterator[TestClient]:
    with TestClient(make_api(local_service(index.uri), Keys(), STATIC), raise_server_exceptions=False) as made:
        yield made


def refused(client: TestClient, content: bytes, *statuses: int) -> Problem:
    response = client.post("/search", content=content, headers={"content-type": "application/json"})
    assert response.status_code in statuses, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert client.post("/search", json={"query": "heat"}).status_code == 200
    return Problem.model_validate(response.json())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "2.5", "99999999999"])
@pytest.mark.parametrize("field", ["k", "budget"])
def test_invalid_numbers_are_rejected(default: TestClient, field: str, number: str) -> None:
    assert refused(default, f'{{"query": "heat", "{field}": {number}}}'.encode(), 422).field == field


MANY = 200_000


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (SearchRequest, {"query": [1] * MANY}),
        (SearchRequest, {"query": ["a", *[1] * MANY]}),
        (EncodeRequest, {"query": [None] * MANY}),
        (IngestRequest, {"passages": [1] * MANY}),
        (IngestRequest, {"passages": [{"id": "a", "metadata": {str(n): [] for n in range(MANY)}}]}),
        (SearchRequest, {f"unknown{n}": n for n in range(MANY)}),
    ],
)
def test_validation_of_a_body_stops_at_the_first_mistake(kind: type[BaseModel], body: object) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    items = {tuple(part for part in error["loc"] if isinstance(part, int)) for error in caught.value.errors()}
    assert len(items - {()}) <= 1
    assert caught.value.error_count() <= len(("bool", "int", "float", "str")), "one for each type that it can have"


LONG = "long" * 2000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/search", {"query": "heat", LONG: 1}),
        ("POST", "/search", {"query": "heat", "mode": LONG}),
        ("POST", "/search", {"query": "heat", "mode": f"dense+{'9' * 190}x"}),
        ("POST", "/search", {"query": "heat", "k": int("9" * 4000)}),
        ("POST", "/search", {"query": "heat", "filter": f"id = {LONG[:3000]}"}),
        ("POST", "/passages", {"passages": [{"id": f"a b{LONG}"}]}),
        ("POST", "/passages", {"passages": [{"id": LONG[:4000], "text": "heat"}] * 2}),
        ("POST", "/passages", {"passages": [{"id": "a", "text": "heat", "metadata": {LONG[:4000]: 1}}]}),
        ("DELETE", f"/passages/{LONG[:4000]}", None),
        ("GET", f"/{LONG}", None),
    ],
)
def test_a_problem_shortens_what_it_quotes(default: TestClient, method: str, path: str, body: object) -> None:
    response = default.request(method, path, json=body)
    assert 400 <= response.status_code < 500
    # In an id, a letter that is not one of ASCII is written as its number.
    longest = max(map(len, str(response.json()).split("'")))
    assert longest < 300, response.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"query": ' + b"[" * 100_000, 400),
        (b'{"query": "heat", "k": ' + b"9" * 6000 + b"}", 400),
        (b'{"query": "' + b"a" * (5 << 20) + b'"}', 413),
        (b"\x00" * 64, 400),
        (b'{"query": "heat"} {"query": "heat"}', 400),
        (b"{", 400),
        (b'{"query": "\\ud800"}', 422),
        (b"", 422),
        ("{'query': 'heat'}".encode("utf-16"), 400),
    ],
)
def test_malformed_and_huge_bodies_are_rejected(default: TestClient, content: bytes, status: int) -> None:
    refused(default, content, status)


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2f..%2fapp.py", "/static//etc/passwd", "/%00"],
)
def test_paths_outside_the_static_folder_are_not_found(default: TestClient, path: str) -> None:
    response = default.get(path)
    assert response.status_code == 404
    assert response.json()["type"] == "urn:diffretriever:problem:not-found"
