"""Overload, slow bodies, keys and foreign pages become problems."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serving.guard import Guard, Keys
from diffretriever.serving.load import Caps, Load
from tests.asgi import request


async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    if body == b"slow":
        await asyncio.sleep(10)
    if body == b"fails":
        raise RuntimeError("a secret")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def guard(keys: Keys | None = None, **settings: Any) -> Guard:
    config = ServeConfig.model_validate({"index": "i", **settings})
    return Guard(answer, config, keys or Keys(), Load(config.max_ongoing, (Caps(),)))


def test_requests_above_max_ongoing_are_rejected() -> None:
    async def ask() -> list[httpx2.Response]:
        busy = guard(max_ongoing=2, limits={"timeout_s": 0.2})
        working = [asyncio.create_task(request(busy, b"slow")) for _ in range(2)]
        while busy.ongoing < 2:
            await asyncio.sleep(0)
        return await asyncio.gather(*working, request(busy, b"slow"), request(busy, b"", path="/healthz"))

    first, second, third, health = asyncio.run(ask())
    assert third.status_code == 503
    assert "2 requests" in third.json()["detail"]
    assert [first.status_code, second.status_code] == [503, 503]
    assert "within 0.2 seconds" in first.json()["detail"]
    assert all(int(sent.headers["retry-after"]) > 0 for sent in (first, second, third))
    assert health.status_code == 200


def test_slow_and_long_bodies_are_rejected() -> None:
    sent = asyncio.run(request(guard(limits={"body_s": 0.1}), *[b"x"] * 50, wait=0.02))
    assert (sent.status_code, sent.headers["connection"]) == (408, "close")
    sent = asyncio.run(request(guard(limits={"max_body_bytes": 5}), b"abc", b"def", b"never read"))
    assert (sent.status_code, sent.headers["connection"]) == (413, "close")
    assert asyncio.run(request(guard(limits={"max_body_bytes": 5}), b"abc", b"de")).status_code == 200


def test_slow_bodies_do_not_count_as_requests_in_progress() -> None:
    async def ask() -> tuple[httpx2.Response, list[httpx2.Response]]:
        busy = guard(max_ongoing=2, limits={"body_s": 0.5})
        slow = [asyncio.create_task(request(busy, b"x", b"y", wait=1)) for _ in range(6)]
        await asyncio.sleep(0.05)
        return await request(busy, b"search"), await asyncio.gather(*slow)

    honest, slow = asyncio.run(ask())
    assert honest.status_code == 200
    assert {sent.status_code for sent in slow} == {408}


def test_the_details_of_a_server_error_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    sent = asyncio.run(request(guard(), b"fails"))
    assert sent.status_code == 500
    assert "secret" not in sent.text
    assert "a request to /search failed" in caplog.text


READS = (("POST", "/search"), ("POST", "/encode"), ("GET", "/index"), ("GET", "/metrics"), ("GET", "/nothing"))
WRITES = (
    ("POST", "/passages"),
    ("DELETE", "/passages/d1"),
    ("POST", "/nothing"),
    ("POST", "/search/"),
)


@pytest.mark.parametrize(
    ("keys", "key", "reading", "writing"),
    [
        (Keys(), "any", 200, 200),
        (Keys.of("w"), "w", 200, 200),
        (Keys.of("w"), "r", 401, 401),
        (Keys.of("w", "r"), "w", 200, 200),
        (Keys.of("w", "r"), "r", 200, 403),
        (Keys.of("w", "r"), "x", 401, 401),
        (Keys.of("w", "r"), "", 401, 401),
        (Keys.of(None, "r"), "r", 200, 403),
    ],
)
def test_a_read_key_cannot_change_the_index(keys: Keys, key: str, reading: int, writing: int) -> None:
    through = guard(keys)
    for expected, requests in ((reading, READS), (writing, WRITES)):
        for method, path in requests:
            headers = {"authorization": f"Bearer {key}"}
            sent = asyncio.run(request(through, path=path, method=method, headers=headers))
            assert sent.status_code == expected, (method, path)
            if expected == 403:
                assert "may search" in sent.json()["detail"]
                assert "write key" in sent.json()["fix"]
                assert sent.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'


PATHS = ("/", "/static/page.js", "/openapi.json", "/index", "/search")
OWN = ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "192.0.2.7")
FOREIGN = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "")


@pytest.mark.parametrize(
    ("keys", "hosts", "own", "foreign"),
    [
        (Keys(), [], OWN, FOREIGN),
        (Keys(), ["Search.example.org"], (*OWN, "search.example.org:443"), FOREIGN),
        (Keys(), ["*"], (*OWN, *FOREIGN), ()),
        (Keys.of("w"), [], (*OWN, *FOREIGN), ()),
        (Keys.of("w"), ["search.example.org"], (*OWN, "search.example.org"), FOREIGN),
    ],
)
def test_dns_rebinding_is_rejected(keys: Keys, hosts: list[str], own: Sequence[str], foreign: Sequence[str]) -> None:
    through = guard(keys, hosts=hosts)

    def status(host: str, path: str) -> int:
        headers = {"host": host, "authorization": "Bearer w"}
        return asyncio.run(request(through, path=path, method="GET", headers=headers)).status_code

    assert {status(host, path) for host in own for path in (*PATHS, "/healthz")} == {200}
    assert {status(host, path) for host in foreign for path in PATHS} <= {421}
    # Load balancers and kubelets use their own names.
    assert {status(host, path) for host in foreign for path in ("/healthz", "/readyz")} <= {200}


@pytest.mark.parametrize(
    ("origin", "writing"),
    [
        (None, 200),
        ("http://localhost:8000", 200),
        ("https://search.example.org", 200),
        ("https://other.example.org:8443", 200),
        ("https://other.example.org", 403),
        ("http://evil.example", 403),
        ("http://192.0.2.7", 403),
        ("null", 403),
    ],
)
def test_pages_of_other_sites_cannot_change_the_index(origin: str | None, writing: int) -> None:
    through = guard(hosts=["search.example.org"], cors_origins=["https://other.example.org:8443"])
    for expected, requests in ((200, READS), (writing, WRITES)):
        for method, path in requests:
            sent = asyncio.run(request(through, path=path, method=method, headers={"origin": origin} if origin else {}))
            assert sent.status_code == expected, (method, path)


@pytest.mark.parametrize("name", ["DIFFRETRIEVER_API_KEY", "DIFFRETRIEVER_READ_KEY"])
def test_an_empty_or_short_key_is_rejected(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for key, wrong in (("", "set but empty"), ("0123456789abcde", "shorter than 16 characters")):
        monkeypatch.setenv(name, key)
        with pytest.raises(ValueError, match=f"{name} is {wrong}: "):
            Keys.from_environment()


def test_nested_arguments_are_parsed_and_validated() -> None:
    config = ServeConfig.from_arguments({"index": "i", "limits.max_k": "7", "ingress.max_replicas": 3})
    assert (config.limits.max_k, config.ingress.max_replicas) == (7, 3)
    with pytest.raises(ValidationError, match="Did you mean 'index'"):
        ServeConfig.from_arguments({"indx": "i"})
    with pytest.raises(ValidationError, match="set layout to apart"):
        ServeConfig.from_arguments({"index": "i", "shards": 2})
    with pytest.raises(ValidationError, match="below min_replicas"):
        ServeConfig.from_arguments({"index": "i", "shard.min_replicas": 2})
