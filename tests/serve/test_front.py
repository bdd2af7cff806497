"""What stands before Ray's proxy: slow bodies stay there, and whatever Ray itself answers becomes a problem."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from ray.exceptions import ActorDiedError
from ray.serve._private.http_util import convert_object_to_asgi_messages
from starlette.types import Message, Receive, Scope, Send

from diffretriever.serve.front import Front
from tests.asgi import request
from tests.serve.asking import LIMIT_S, run


class Proxy:
    """Ray's proxy; the status None is that of a crashed replica."""

    def __init__(self, status: int | None = 200, content: Any = None) -> None:
        self.status, self.content = status, content
        self.routes: Any = {"/": "other", "/ours": "ours"}
        self.bodies: list[bytes] = []
        self.waits = self.lingers = self.is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/-/routes":
            await _send_all(send, convert_object_to_asgi_messages(self.routes, 200 if self.routes else 503))
            return
        parts = [await receive()]
        while parts[-1]["more_body"]:
            parts.append(await receive())
        self.bodies.append(b"".join(part["body"] for part in parts))
        while self.waits and not self.is_over:
            await asyncio.sleep(0.01)
        if self.status is not None:
            await _send_all(send, convert_object_to_asgi_messages(self.content, self.status))
        if self.lingers:
            await asyncio.sleep(LIMIT_S)


async def _send_all(send: Send, messages: list[Message]) -> None:
    for message in messages:
        await send(message)


class Handle:
    """Handle of a deployment with these responses to pings."""

    def __init__(self, deployment_name: str, *pings: Any) -> None:
        self.deployment_name, self.pings = deployment_name, list(pings)

    def broadcast(self, method: str) -> Handle:
        assert method == "ping"
        return self

    async def results_async(self, *, return_exceptions: bool) -> list[Any]:
        assert return_exceptions
        return self.pings


def statuses(**by_name: str) -> SimpleNamespace:
    return SimpleNamespace(applications={name: SimpleNamespace(status=each) for name, each in by_name.items()})


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """What the application's handle is; another's is deployed at the root."""
    handles = {"ours": Handle("Ingress", None), "other": Handle("Theirs")}
    monkeypatch.setattr("diffretriever.serve.front.serve", SimpleNamespace(get_app_handle=handles.__getitem__))
    monkeypatch.setattr("diffretriever.serve.replicas._CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(
        "diffretriever.serve.replicas.serve", SimpleNamespace(status=lambda: statuses(ours="UNHEALTHY"))
    )
    return handles["ours"]


def assert_retryable(answer: httpx2.Response, detail: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 0
    problem = json.loads(answer.content)
    assert problem["type"] == "urn:diffretriever:problem:unavailable"
    assert detail in problem["detail"]
    assert "nosniff" in answer.headers["x-content-type-options"]


def test_responses_of_applications_pass_unchanged() -> None:
    """Those of the application, its errors too, and of other applications whatever they are."""
    for proxy in (Proxy(200, {"hits": []}), Proxy(200, "plain"), Proxy(422, {"detail": "bad"}), Proxy(500, {"a": 1})):
        answer = run(lambda proxy=proxy: request(Front(proxy), b"a", b"b", path="/ours/search"))  # type: ignore[misc]
        assert answer.status_code == proxy.status
        assert proxy.bodies == [b"ab"]
    answer = run(lambda: request(Front(Proxy(500, "theirs")), path="/theirs"))
    assert (answer.status_code, answer.content) == (500, b"theirs")


@pytest.mark.parametrize("status", [None, 404, 408, 500, 503])
def test_errors_of_ray_become_problems_with_retry_after(status: int | None) -> None:
    answer = run(lambda: request(Front(Proxy(status, "unavailable: Replica#7 at 10.0.0.1")), path="/ours/search"))
    assert_retryable(answer, "no replica of the application")
    assert b"10.0.0.1" not in answer.content


def test_requests_fail_fast_without_a_live_replica(ours: Handle) -> None:
    async def asking() -> list[httpx2.Response]:
        proxy = Proxy(200, {})
        proxy.waits, ours.pings = True, [ActorDiedError()]
        front = Front(proxy)
        early = await asyncio.gather(*(request(front, path="/ours/search") for _ in range(3)))
        late = await request(front, path="/ours/search")
        assert len(proxy.bodies) == 3, "who comes later is told before Ray has the request"
        proxy.waits, ours.pings = False, [None]
        assert (await request(front, path="/ours/search")).status_code == 200
        return [*early, late]

    for answer in run(asking):
        assert_retryable(answer, "crashed")


def test_no_problem_follows_a_response(ours: Handle) -> None:
    """Ray waits for a dead replica to say that this was all; the connection has the client's next request by then."""
    proxy = Proxy(200, {"hits": []})
    proxy.lingers, ours.pings = True, [ActorDiedError()]
    answer = run(lambda: request(Front(proxy), path="/ours/search"))
    assert (answer.status_code, json.loads(answer.content)) == (200, {"hits": []})


def test_slow_bodies_do_not_reach_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.serve.front._BODY_S", 0.1)
    proxy = Proxy(200, {})
    answer = run(lambda: request(Front(proxy), *[b"x"] * 50, path="/ours/search", wait=0.02))
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    assert not proxy.bodies
