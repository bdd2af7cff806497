"""ASGI middleware of Ray Serve's proxy: buffer request bodies, and turn Ray's plain-text errors into problems.

To enable it, start Ray with RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=diffretriever.serve.front:middlewares.
"""

from __future__ import annotations

import asyncio
import json
import time

from ray import serve
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffretriever.serve.replicas import Replicas
from diffretriever.serving.guard import Replayed, SecurityHeaders, read_body
from diffretriever.serving.problems import RequestError, UnavailableError

ENVIRONMENT = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "diffretriever.serve.front:middlewares"}
"""Environment variables of Ray's processes."""
_BODY_S = 5.0
_BUFFER_BYTES = 64 << 10
"""Longer bodies are streamed; the replica limits their size."""
_INGRESS = "Ingress"
"""Deployment of serve/app.py that handles requests. Other applications pass unchanged."""
_ROUTES = "/-/routes"
_UNAVAILABLE = "no replica of the application is available"
_ROUTES_S = 1.0
"""Seconds between updates of the applications and their routes."""


def middlewares() -> list[Middleware]:
    """Return the middleware for Ray's proxies."""
    return [Middleware(Front)]


class Front:
    """Forwards a request once its body has arrived, or answers with a problem if no replica is alive."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._applications: dict[str, str] = {}
        """Application names by route."""
        self._updated = -_ROUTES_S
        self._replicas: dict[str, Replicas | None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer with a problem."""
        path = str(scope["path"]).removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else "/-/"
        try:
            # Paths below /-/ are Ray's.
            replicas = None if path.startswith("/-/") else await self._replicas_of(path, scope)
            if replicas is None:
                await self._app(scope, receive, send)
                return
            body = Replayed(await read_body(receive, _BUFFER_BYTES, _BODY_S), receive)
            answer = _Answer(send)
            try:
                await replicas.while_alive(lambda: self._app(scope, body, answer))
            except UnavailableError:
                # A problem after a response would look like the answer to the client's next request.
                if not answer.has_begun:
                    raise
            finally:
                answer.is_over = True
            if answer.is_rays or not answer.has_begun:
                raise UnavailableError(_UNAVAILABLE)
        except RequestError as problem:
            await SecurityHeaders(problem.response(scope["path"]))(scope, receive, send)

    async def _replicas_of(self, path: str, scope: Scope) -> Replicas | None:
        if time.monotonic() - self._updated > _ROUTES_S:
            self._applications = await self._routes(scope)
            self._updated = time.monotonic()
        if not self._applications:
            raise UnavailableError(_UNAVAILABLE)
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
        """Return the application of each route, by the proxy's own list."""
        parts: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            parts.append(message)

        request = {"method": "GET", "path": scope.get("root_path", "") + _ROUTES, "headers": [], "query_string": b""}
        await self._app({**scope, **request}, receive, send)
        if parts[0]["status"] != 200:
            return {}
        routes: dict[str, str] = json.loads(b"".join(part.get("body", b"") for part in parts))
        return routes


class _Answer:
    """Forwards a response unless it is a Ray error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.is_rays = self.is_over = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = {bytes(name).lower(): bytes(value) for name, value in message["headers"]}
            # The application's errors are never plain text.
            self.is_rays = message["status"] >= 400 and headers.get(b"content-type", b"").startswith(b"text/plain")
        if not self.is_rays and not self.is_over:
            await self._send(message)
