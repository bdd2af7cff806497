"""What stands before Ray Serve's own proxy: slow bodies are held off here, and what Ray answers becomes a problem.

Where Ray is started with RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=diffretriever.serve.front:middlewares, its proxies
use this.
"""

from __future__ import annotations

import asyncio
import json
import time

from ray import serve
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware

from diffretriever.serve.replicas import GONE, Replicas
from diffretriever.serving.guard import App, Bodies, Message, Receive, Replayed, SafeHeaders, Scope, Send, send_problem
from diffretriever.serving.problems import RequestError, UnavailableError

ENVIRONMENT = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "diffretriever.serve.front:middlewares"}
"""Of Ray's processes."""
_BODIES = 1024
_BODY_S = 5.0
_HELD_BYTES = 64 << 10
"""A longer body goes on as it comes, to the replica that knows how long it may be."""
_INGRESS = "Ingress"
"""The deployment of serve/app.py that takes requests; what others deploy is left as it is."""
_OWN = "/-/"
"""Paths below it are Ray's."""
_ROUTES = "/-/routes"
_ENDING = "the application is starting or ending"
_ROUTES_S = 1.0
"""Seconds between looks at what is deployed where."""


def middlewares() -> list[Middleware]:
    """Return what Ray is to put before a proxy."""
    return [Middleware(Front)]


class Front:
    """ASGI middleware of a proxy: a request goes on once its body is there, and gets a problem where nobody answers.

    What is for another's application passes as if it were not there.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._bodies = Bodies(_BODIES, _BODY_S)
        self._applications: dict[str, str] = {}
        """Names by route."""
        self._looked = -_ROUTES_S
        self._replicas: dict[str, Replicas | None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path = str(scope["path"]).removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else _OWN
        if path.startswith(_OWN):
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(path, scope, receive, send)
        except RequestError as error:
            refused = error

            async def refuse(scope: Scope, _: Receive, send: Send) -> None:
                await send_problem(refused, scope, send)

            await SafeHeaders(refuse)(scope, receive, send)

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        replicas = await self._replicas_of(path, scope)
        if replicas is None:
            await self._app(scope, receive, send)
            return
        body = Replayed(await self._bodies.read(receive, _HELD_BYTES), receive)
        answer = _Answer(send)
        try:
            await replicas.while_alive(lambda: self._app(scope, body, answer))
        except UnavailableError:
            # A client that has its answer may have sent the next request already: it would get this one's refusal.
            if not answer.has_begun:
                raise
        finally:
            answer.is_over = True
        answer.check()

    async def _replicas_of(self, path: str, scope: Scope) -> Replicas | None:
        """Return those of the application at a path; None where it is another's, or there is none."""
        if time.monotonic() - self._looked > _ROUTES_S:
            self._applications = await self._routes(scope)
            self._looked = time.monotonic()
        if not self._applications:
            raise UnavailableError(_ENDING)
        routes = [route for route in self._applications if f"{path}/".startswith(f"{route.rstrip('/')}/")]
        if not routes:
            return None
        name = self._applications[max(routes, key=len)]
        if name not in self._replicas:
            try:
                handle = await asyncio.to_thread(serve.get_app_handle, name)
            except RayServeException:
                return None
            self._replicas[name] = Replicas(handle, name) if handle.deployment_name == _INGRESS else None
        return self._replicas[name]

    async def _routes(self, scope: Scope) -> dict[str, str]:
        """Ask the proxy what is deployed where; nothing while it does not know."""
        parts: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            parts.append(message)

        place = {"method": "GET", "path": scope.get("root_path", "") + _ROUTES, "headers": [], "query_string": b""}
        await self._app({**scope, **place}, receive, send)
        if parts[0]["status"] != 200:
            return {}
        routes: dict[str, str] = json.loads(b"".join(part.get("body", b"") for part in parts))
        return routes


class _Answer:
    """Passes an answer on, unless it is one of Ray's own."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self._refused: UnavailableError | None = None
        self.is_over = False

    async def __call__(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            self._refused = _refusal(message)
        if self._refused is None and not self.is_over:
            await self._send(message)

    def check(self) -> None:
        """Raise `UnavailableError` if there was no answer, or one of Ray's own."""
        if self._refused is not None:
            raise self._refused
        if not self.has_begun:
            raise UnavailableError(GONE)


def _refusal(start: Message) -> UnavailableError | None:
    """Return what an answer of Ray's own means; None for one of the application's, whose errors are no plain text."""
    headers = {bytes(name).lower(): bytes(value) for name, value in start["headers"]}
    if not headers.get(b"content-type", b"").startswith(b"text/plain"):
        return None
    if start["status"] == 503 and b"retry-after" in headers:
        return UnavailableError("too many requests are waiting")
    detail = {404: _ENDING, 408: "no answer in time", 500: GONE, 503: GONE}.get(start["status"])
    return None if detail is None else UnavailableError(detail)
