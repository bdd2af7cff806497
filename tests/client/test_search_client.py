"""Requests, responses and errors of both clients."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from diffretriever.client import AnswerError, AsyncSearchClient, ProblemError, Retries, SearchClient
from tests.client.service import ADDED, DELETED, FOUND, PASSAGE, REFUSED, Ask, Script, ok, problem


def test_search_sends_options_and_returns_a_typed_response(ask: Ask) -> None:
    script = Script([ok(FOUND)])
    asked = {"k": 3, "mode": "dense", "budget": 8, "filter": "year >= 2020", "explain": True, "words": 2}
    assert ask(script, "search", ["heat", "slab"], **asked) == FOUND
    (request,) = script.requests
    assert (request.method, str(request.url)) == ("POST", "http://service/search")
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {
        "query": ["heat", "slab"],
        "k": 3,
        "mode": "dense",
        "budget": 8,
        "filter": "year >= 2020",
        "explain": True,
        "words": 2,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "dens"}, "mode: unknown scoring mode 'dens'. Did you mean 'dense'?"),
        ({"k": 0}, "k: Input should be greater than 0"),
        ({"budget": 0}, "budget: "),
        ({"budget": "adaptiv"}, "budget: Input should be 'adaptive'; or: budget: Input should be a valid integer"),
        ({"query": 5}, "query: Input should be a valid list; or: query: Input should be a valid string"),
        ({"query": ["a", None]}, "query.1: Input should be a valid string; or: query: Input should be a valid string"),
    ],
)
def test_an_invalid_argument_is_named_before_a_request(ask: Ask, options: dict[str, Any], message: str) -> None:
    script = Script([])
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        ask(script, "search", **{"query": "heat", **options})
    assert str(caught.value).startswith(message)
    assert "pydantic" not in str(caught.value)
    assert not isinstance(caught.value, ValidationError)
    assert script.requests == []


@pytest.mark.parametrize(
    ("call", "args", "answer", "method", "path"),
    [
        ("add_passages", ([PASSAGE],), ADDED, "POST", "/passages"),
        ("delete_passage", ("p1",), DELETED, "DELETE", "/passages/p1"),
        ("delete_passage", ("a/b ../?#ü%",), DELETED, "DELETE", "/passages/a%2Fb%20..%2F%3F%23%C3%BC%25"),
    ],
)
def test_passages_change(ask: Ask, call: str, args: tuple[Any], answer: Any, method: str, path: str) -> None:
    script = Script([ok(answer)])
    assert ask(script, call, *args) == answer
    (request,) = script.requests
    assert (request.method, request.url.raw_path.decode()) == (method, path)


def test_the_key_is_only_in_its_header() -> None:
    script = Script([httpx2.Response(307, headers={"location": "http://elsewhere/search"})])
    with SearchClient("http://service", api_key="s3cret", transport=httpx2.MockTransport(script)) as client:
        assert "s3cret" not in repr(client)
        with pytest.raises(AnswerError) as caught:
            client.search("heat")
    (request,) = script.requests
    assert request.headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(request.url) + str(caught.value)


def test_a_problem_is_raised_with_field_and_fix(ask: Ask) -> None:
    with pytest.raises(ProblemError) as caught:
        ask(Script([problem()]), "search", "heat", budget=99)
    error = caught.value
    assert (error.status, error.field, error.fix, error.problem) == (422, "budget", "ask for at most 32", REFUSED)
    assert str(error) == "422 budget: K_q 99 is too large: ask for at most 32"


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"results": []}', b"[1]", b"\xff\xfe"])
def test_responses_of_other_programs_are_rejected(ask: Ask, body: bytes) -> None:
    with pytest.raises(AnswerError, match="not a valid SearchResponse"):
        ask(Script([httpx2.Response(200, content=body)]), "search", "heat")
    with pytest.raises(AnswerError, match="status 500"):
        ask(Script([httpx2.Response(500, content=body)]), "search", "heat", retries=Retries(attempts=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "service:8000"}, "url"),
        ({"url": "ftp://service"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "two\nlines"}, "api_key"),
    ],
)
@pytest.mark.parametrize("client", [SearchClient, AsyncSearchClient])
def test_invalid_settings_are_rejected(client: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client(**options)
