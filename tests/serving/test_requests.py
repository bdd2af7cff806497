"""Requests without a server: responses, limits, keys and problems."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.serve import Problem, Reading, SearchResponse
from diffretriever.search import open_searcher
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import HEADERS, Keys
from tests.serving.conftest import KEY
from tests.serving.serving_cases import PASSAGES, QUERIES, local_service, served


def search(client: TestClient, **body: Any) -> SearchResponse:
    return SearchResponse.model_validate(client.post("/search", json=body).raise_for_status().json())


def problem(response: Any, status: int) -> Problem:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return Problem.model_validate(response.json())


def test_hybrid_hits_have_all_scores_and_explanations(client: TestClient, index: PassageIndex) -> None:
    searcher = open_searcher(index.uri)
    lists = {mode: dict(hits[0]) for mode, hits in searcher.search(QUERIES[:1], k=1000).items()}
    answer = search(client, query=QUERIES[0], explain=True)
    assert answer.mode == "hybrid"
    (result,) = answer.results
    texts = {passage.id: passage for passage in PASSAGES}
    for rank, hit in enumerate(result.hits, start=1):
        assert hit.rank == rank
        assert hit.scores == {mode: lists[mode].get(hit.id) for mode in ("hybrid", "dense", "sparse")}
        assert (hit.title, hit.text) == (texts[hit.id].title, texts[hit.id].text)
        assert hit.explanation is not None
        assert sum(match.share or 0 for match in hit.explanation.slots) == pytest.approx(1)
    assert (answer.index.version, answer.index.rows) == (index.version, 60)
    assert datetime.fromisoformat(answer.index.committed) < datetime.now(UTC)
    assert search(client, query="heat").index.checked_seconds_ago > answer.index.checked_seconds_ago
    assert answer.index.name == index.uri.rpartition("/")[2], "the path is not public"


def words_of(readings: list[Reading]) -> list[list[str]]:
    return [[token.word for token in reading] for reading in readings]


def test_predicted_words_equal_those_of_the_encoder(client: TestClient, index: PassageIndex, encoder: Encoder) -> None:
    answer = search(client, query=QUERIES[:2], explain=True, words=3, k=4)
    plain = search(client, query=QUERIES[:2], explain=True, k=4)
    for number, (result, without) in enumerate(zip(answer.results, plain.results, strict=True)):
        query_words = encoder.read(encoder.encode_queries(QUERIES[number : number + 1]).vectors_MH, 3)
        for hit, other in zip(result.hits, without.hits, strict=True):
            assert hit.explanation is not None
            assert other.explanation is not None
            passages = index.order.passages
            assert passages.rows_P is not None
            stored = index.representations(passages.rows_P[passages.numbers_of([hit.id])])
            passage_words = encoder.read(stored.vectors_MH, 3)
            assert words_of(hit.explanation.query_readings) == words_of(query_words)
            assert words_of(hit.explanation.passage_readings) == words_of(passage_words)
            assert not other.explanation.query_readings
            unread: dict[str, list[Any]] = {"query_readings": [], "passage_readings": []}
            assert hit.explanation.model_copy(update=unread) == other.explanation
    assert client.get("/index").json()["readable"]


def test_sums_with_bm25_equal_those_of_a_search_job(client: TestClient, index: PassageIndex) -> None:
    offered = client.get("/index").raise_for_status().json()
    assert offered["modes"] == ["dense", "sparse", "hybrid"]
    assert offered["default_mode"] == "hybrid"
    assert offered["further_modes"] == ["bm25", "dense+bm25", "sparse+bm25", "dense+sparse+bm25"]
    expected = open_searcher(index.uri).search(QUERIES, k=20, modes=["bm25", "dense+bm25", "dense+0.05bm25"])
    answers = {mode: search(client, query=QUERIES, k=20, mode=mode) for mode in ("bm25", "bm25+dense", "dense+.05bm25")}
    assert [answer.mode for answer in answers.values()] == ["bm25", "dense+bm25", "dense+0.05bm25"]
    for answer in answers.values():
        ranked = [[(hit.id, hit.score) for hit in result.hits] for result in answer.results]
        assert ranked == expected[answer.mode]
    for hit in answers["bm25+dense"].results[0].hits:
        assert hit.scores.keys() == {"dense+bm25", "dense", "bm25"}
        assert hit.title


@pytest.mark.parametrize(("selector", "rule"), [(None, "rule"), ("fixed:2", "fixed:2")])
def test_the_selector_of_the_config_chooses_the_budget(index: PassageIndex, selector: str | None, rule: str) -> None:
    client = served(index.uri, selector=selector)
    assert search(client, query=QUERIES[0], budget="adaptive").results[0].budget.rule == rule


def test_encoded_queries_equal_those_of_the_encoder(client: TestClient, encoder: Encoder) -> None:
    answer = client.post("/encode", json={"query": QUERIES[:2], "budget": 3}).raise_for_status().json()
    expected = encoder.encode_queries(QUERIES[:2], [3, 3])
    vectors = [slot["vector"] for result in answer["results"] for slot in result["slots"]]
    assert vectors == expected.vectors_MH.astype(float).tolist()
    weights = [term["weight"] for term in answer["results"][0]["terms"]]
    assert sorted(weights) == sorted(expected.impact_weights[: expected.impact_offsets[1]].tolist())


@pytest.mark.parametrize(
    ("body", "status", "field", "message"),
    [
        ({"query": ""}, 422, "query", "blank"),
        ({"query": ["heat", "  "]}, 422, "query.1", "blank"),
        ({"query": []}, 422, "query", "between 1 and 4"),
        ({"query": ["a"] * 5}, 422, "query", "between 1 and 4"),
        ({"query": "a" * 201}, 422, "query", "200 characters"),
        ({"query": "nul \x00"}, 422, "query", "NUL"),
        ({"query": 5}, 422, "query", "string"),
        ({}, 422, "query", "required"),
        ({"query": "a", "k": 51}, 422, "k", "at most 50"),
        ({"query": "a", "words": 3}, 422, "words", "set explain to true"),
        ({"query": "a", "words": 51, "explain": True}, 422, "words", "less than or equal to 50"),
        ({"query": ["a", "b"], "k": 11, "words": 3, "explain": True}, 422, "words", "22 passages are too many"),
        ({"query": "a", "k": 0}, 422, "k", "greater than 0"),
        ({"query": "a", "budget": 33}, 422, "budget", "at most 32"),
        ({"query": "a", "budget": "best"}, 422, "budget", "adaptive"),
        ({"query": "a", "mode": "lexical"}, 422, "mode", "dense"),
        ({"query": "a", "mode": "bm25+dens"}, 422, "mode", "Did you mean 'bm25'?"),
        ({"query": "a", "filter": "year > 2000"}, 422, "filter", "Known: collection, id"),
        ({"query": "a", "filter": "id = 'd1' AND"}, 422, "filter", "found the end"),
        ({"query": "a", "filter": "id = 'x' OR " * 400}, 413, None, "4000 bytes"),
        ({"query": "a", "filter": 3}, 422, "filter", "valid string"),
        ({"query": "a", "bugdet": 3}, 422, None, "Did you mean 'budget'?"),
        ([], 422, None, "object"),
        ({"query": "a" * 4000}, 413, None, "4000 bytes"),
    ],
)
def test_mistakes_are_problems_with_a_fix(
    client: TestClient, body: Any, status: int, field: str | None, message: str
) -> None:
    answer = problem(client.post("/search", json=body), status)
    assert answer.field == field
    assert message in f"{answer.detail} {answer.fix}"
    assert answer.instance == "/search"
    assert answer.status == status


@pytest.mark.parametrize(
    ("limits", "body", "message"),
    [
        ({}, {"query": QUERIES * 16, "k": 157}, "10048 passages are too many; request at most 10000"),
        ({}, {"query": QUERIES, "k": 51, "explain": True}, "to explain; request at most 200"),
        ({"max_hits": 7}, {"query": QUERIES[:2], "k": 4}, "8 passages are too many; request at most 7"),
    ],
)
def test_too_many_passages_are_rejected(
    index: PassageIndex, limits: dict[str, int], body: dict[str, Any], message: str
) -> None:
    with served(index.uri, limits=limits) as client:
        answer = problem(client.post("/search", json=body), 422)
    assert answer.field == "k"
    assert message in f"{answer.detail}; {answer.fix}"


def test_only_checks_and_openapi_need_no_key(client: TestClient) -> None:
    for method, path in (("POST", "/search"), ("GET", "/index"), ("DELETE", "/passages/d1"), ("GET", "/anything")):
        for value in ("", "Bearer", "Bearer wrong", f"Basic {KEY}"):
            response = client.request(method, path, headers={"Authorization": value})
            problem(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert client.get(path, headers={"Authorization": ""}).status_code == 200
    assert client.get("/index", headers={"Authorization": f"bearer {KEY}"}).status_code == 200


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    problem(client.get("/searches"), 404)
    # A redirect would lead to wherever the Host header says.
    problem(client.get("/index/"), 404)
    response = client.get("/search")
    problem(response, 405)
    assert response.headers["allow"] == "POST"


def test_every_response_has_the_security_headers(client: TestClient) -> None:
    for path in ("/healthz", "/index", "/static/nothing", "/nowhere"):
        headers = client.get(path).headers
        assert {name: headers.get_list(name) for name in HEADERS} == {name: [value] for name, value in HEADERS.items()}


def test_configured_origins_get_cors_headers(index: PassageIndex) -> None:
    service = local_service(index.uri, cors_origins=["https://example.org"])
    with TestClient(make_api(service, Keys.of("key"), None)) as client:
        for origin, allowed in (("https://example.org", "https://example.org"), ("https://example.com", None)):
            asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            asks["Access-Control-Request-Headers"] = "authorization,content-type"
            assert client.options("/search", headers=asks).headers.get("access-control-allow-origin") == allowed
            refused = client.get("/index", headers={"Origin": origin})
            assert refused.status_code == 401
            assert refused.headers.get("access-control-allow-origin") == allowed
