"""What stands before Ray's proxy: slow bodies stay there, and whatever Ray itself answers becomes a problem."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve._private.http_util import convert_object_to_asgi_messages
from starlette.types import Message, Receive, Scope, Send

from diffretriever.serve.front import Front

LONG_S = 3600.0
"""Longer than a test may take."""


class Proxy:
    """Stands for Ray's proxy: knows its routes, answers as told, and with None as if the replica had died."""

    def __init__(self, status: int | None = 200, content: Any = None, retry_after: str | None = None) -> None:
        self.status, self.content, self.retry_after = status, content, retry_after
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
            header = [] if self.retry_after is None else [(b"retry-after", self.retry_after.encode())]
            await _send_all(send, convert_object_to_asgi_messages(self.content, self.status, header))
        if self.lingers:
            await asyncio.sleep(LONG_S)


async def _send_all(send: Send, messages: list[Message]) -> None:
    for message in messages:
        await send(message)


class Handle:
    """Of a deployment whose replicas answer pings as told."""

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
    monkeypatch.setattr("diffretriever.serve.replicas._PATIENCE_S", 0.02)
    monkeypatch.setattr(
        "diffretriever.serve.replicas.serve", SimpleNamespace(status=lambda: statuses(ours="UNHEALTHY"))
    )
    return handles["ours"]


async def request(front: Front, path: str = "/ours/search", *parts: bytes, wait: float = 0) -> SimpleNamespace:
    left = list(parts or (b"body",))

    async def receive() -> Message:
        await asyncio.sleep(wait)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await front({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)
    headers = {bytes(name).decode().lower(): bytes(value).decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return SimpleNamespace(status=sent[0]["status"], headers=headers, body=body)


def run(asking: Callable[[], Awaitable[Any]]) -> Any:
    async def in_time() -> Any:
        async with asyncio.timeout(LONG_S / 4):
            return await asking()

    return asyncio.run(in_time())


def assert_retryable(answer: SimpleNamespace, detail: str) -> None:
    assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 0
    problem = json.loads(answer.body)
    assert problem["type"] == "urn:diffretriever:problem:unavailable"
    assert detail in problem["detail"]
    assert "nosniff" in answer.headers["x-content-type-options"]


def test_answers_pass_as_they_are() -> None:
    """Those of the application, its errors too, and of other applications whatever they are."""
    for proxy in (Proxy(200, {"hits": []}), Proxy(200, "plain"), Proxy(422, {"detail": "bad"}), Proxy(500, {"a": 1})):
        answer = run(lambda proxy=proxy: request(Front(proxy), "/ours/search", b"a", b"b"))  # type: ignore[misc]
        assert answer.status == proxy.status
        assert proxy.bodies == [b"ab"]
    answer = run(lambda: request(Front(Proxy(500, "theirs")), "/theirs"))
    assert (answer.status, answer.body) == (500, b"theirs")


@pytest.mark.parametrize(
    ("proxy", "detail"),
    [
        (Proxy(None), "has died"),
        (Proxy(500, "Internal Server Error"), "has died"),
        (Proxy(503, "unavailable: Replica#7 at 10.0.0.1"), "has died"),
        (Proxy(503, "256 queued", "1"), "too many"),
        (Proxy(408, "timed out"), "in time"),
        (Proxy(404, "Path '/search' not found."), "starting or ending"),
    ],
)
def test_what_ray_answers_is_a_problem_that_says_when_to_come_back(proxy: Proxy, detail: str) -> None:
    answer = run(lambda: request(Front(proxy)))
    assert_retryable(answer, detail)
    assert b"10.0.0.1" not in answer.body


def test_nobody_waits_for_a_replica_that_is_not_there(ours: Handle) -> None:
    async def asking() -> list[SimpleNamespace]:
        proxy = Proxy(200, {})
        proxy.waits, ours.pings = True, [ActorDiedError()]
        front = Front(proxy)
        early = await asyncio.gather(*(request(front) for _ in range(3)))
        late = await request(front)
        assert len(proxy.bodies) == 3, "who comes later is told before Ray has the request"
        proxy.waits, ours.pings = False, [None]
        assert (await request(front)).status == 200
        return [*early, late]

    for answer in run(asking):
        assert_retryable(answer, "has died")


def test_who_has_an_answer_gets_no_refusal_after_it(ours: Handle) -> None:
    """Ray waits for a dead replica to say that this was all; the connection has the client's next request by then."""
    proxy = Proxy(200, {"hits": []})
    proxy.lingers, ours.pings = True, [ActorDiedError()]
    answer = run(lambda: request(Front(proxy)))
    assert (answer.status, json.loads(answer.body)) == (200, {"hits": []})


def test_who_comes_while_it_is_deployed_waits(ours: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old replicas are gone before the new ones are there."""
    looks: list[None] = []

    def status() -> SimpleNamespace:
        looks.append(None)
        proxy.is_over = len(looks) > 2
        return statuses(ours="DEPLOYING")

    ours.pings = []
    monkeypatch.setattr("diffretriever.serve.replicas.serve", SimpleNamespace(status=status))
    proxy = Proxy(200, {})
    proxy.waits = True
    assert run(lambda: request(Front(proxy))).status == 200


def test_slow_bodies_do_not_reach_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.serve.front._BODY_S", 0.1)
    proxy = Proxy(200, {})
    answer = run(lambda: request(Front(proxy), "/ours/search", *[b"x"] * 50, wait=0.02))
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert not proxy.bodies
