"""Derived files of an index are used and reported, and do not change results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from diffretriever.index.table import PassageIndex
from tests.search.dense_cases import build_codes, build_postings, prepare
from tests.serving.serving_cases import QUERIES, served

MODES = ("dense", "sparse", "hybrid")
ASKED: dict[str, Any] = {"query": QUERIES, "k": 61, "budget": "adaptive"}


def part_of(client: TestClient) -> Any:
    (part,) = client.get("/index").raise_for_status().json()["parts"]
    return part


def rankings(client: TestClient) -> list[Any]:
    answers = [client.post("/search", json={**ASKED, "mode": mode}).raise_for_status().json() for mode in MODES]
    return [[(hit["id"], hit["scores"]) for hit in result["hits"]] for each in answers for result in each["results"]]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        ([build_codes], {"dense": "codes", "sparse": "stream"}),
        ([build_postings], {"dense": "stream", "sparse": "postings"}),
        ([build_codes, build_postings], {"dense": "codes", "sparse": "postings"}),
    ],
)
def test_codes_and_postings_are_used_without_changing_results(
    own_index: PassageIndex, make: Any, expected: Any
) -> None:
    with served(own_index.uri) as client:
        streamed = rankings(client)
    for each in make:
        each(own_index)
    with served(own_index.uri) as client:
        part = part_of(client)
        assert part["search_methods"] == expected
        assert (part["fragments"], part["passages"]) == (3, 60)
        assert part["mapped_bytes"] == sum(
            file.stat().st_size for kind in ("codes", "postings") for file in Path(own_index.uri, kind).rglob("*.*")
        )
        assert rankings(client) == streamed


def test_a_calibrated_candidate_index_is_used(own_index: PassageIndex) -> None:
    prepare(own_index)
    with served(own_index.uri) as client:
        assert part_of(client)["search_methods"]["dense"] == "candidates"
        assert client.post("/search", json={"query": "heat", "mode": "dense"}).status_code == 200
