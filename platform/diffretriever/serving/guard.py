"""What stands before the routes: the API key, how many requests at a time, how large and how slow a body may be.

It also adds the headers that every answer has.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from diffretriever.serving.problems import (
    InternalError,
    RequestError,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    UnavailableError,
)
from schemas.serve_config import ServeConfig

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    # The rest of the policy stands in the pages themselves, where this directive would have no effect.
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}
"""What every answer has: nobody may frame the pages, guess a file's type, or learn queries from an address."""
OPEN = ("/", "/compare", "/healthz", "/readyz", "/openapi.json")
"""Paths that need no key and are answered at once, like the page's files: they tell nothing of the index."""
_FILES = "/static/"
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_BUSY_S = 1
_LOG = logging.getLogger("diffretriever.serving")


class Guard:
    """ASGI middleware. A request that passes has its whole body read, so that no slow client holds up the work."""

    def __init__(self, app: App, config: ServeConfig, key: bytes | None) -> None:
        """`key` is the `key_digest` of the API key, None where none is needed."""
        self._app, self._key = app, key
        self._limits, self._most = config.limits, config.max_ongoing
        self._ongoing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or _is_open(scope):
            await self._app(scope, receive, send)
            return
        try:
            self._check_key(scope)
            await self._admit(scope, receive, send)
        except RequestError as refused:
            await send_problem(refused, scope, send)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None:
            return
        headers = dict(scope["headers"])
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(hashlib.sha256(given).digest(), self._key):
            raise UnauthorizedError("the request has no valid API key", "send it as `Authorization: Bearer KEY`")

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A body that comes slowly must not take the place of a request that could be worked on.
        body = await self._body(receive)
        if self._ongoing >= self._most:
            raise UnavailableError(f"{self._ongoing} requests are being worked on already", _BUSY_S)
        self._ongoing += 1
        try:
            await self._within_time(scope, _Replayed(body, receive), send)
        finally:
            self._ongoing -= 1

    async def _body(self, receive: Receive) -> bytes:
        """Read the whole body."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise TooSlowError("the connection was closed before its end", "send the whole body")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._limits.max_body_bytes:
                        fix = f"send at most {self._limits.max_body_bytes} bytes"
                        raise TooLargeError("the body has more bytes than the server takes", fix)
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            fix = f"send it within {self._limits.timeout_s:g} seconds"
            raise TooSlowError(f"{size} bytes have arrived", fix) from None

    async def _within_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._app(scope, receive, watched)
        except TimeoutError:
            if started:
                raise
            raise UnavailableError(f"no answer within {self._limits.timeout_s:g} seconds") from None
        except Exception:
            # What it was is for the log alone: a message can hold what the client sent.
            _LOG.exception("a request to %s failed", scope["path"])
            if started:
                raise
            raise InternalError("the request could not be answered", "tell whoever runs this server") from None


class SafeHeaders:
    """ASGI middleware that adds `HEADERS`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers)


def key_digest(key: str) -> bytes:
    """Return the SHA-256 of an API key, which is all that a server keeps of it."""
    return hashlib.sha256(key.encode()).digest()


def _is_open(scope: Scope) -> bool:
    path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    return path in OPEN or path.startswith(_FILES)


class _Replayed:
    """A body that was read, given to whoever reads it next."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def send_problem(refused: RequestError, scope: Scope, send: Send) -> None:
    """Answer with a problem."""
    body = refused.problem(str(scope["path"])).model_dump_json().encode()
    headers = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), **refused.headers()}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
