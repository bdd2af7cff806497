"""Middleware that checks host names, API keys, body size and time, and concurrency, and adds security headers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import os
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serving.load import Load
from diffretriever.serving.problems import (
    CrossSiteError,
    ForbiddenError,
    InternalError,
    MisdirectedError,
    RequestError,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    UnavailableError,
)

HEADERS = {
    # The pages contain the rest of the policy; this directive works only in a header.
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}
"""Headers of every response: forbid framing, guessing of content types, and queries in referrers."""
OPEN_PATHS = ("/", "/compare", "/docs", "/healthz", "/readyz", "/openapi.json")
"""Paths that need no key, as the page's files: they reveal nothing about the index."""
_PROBE_PATHS = ("/healthz", "/readyz")
"""Paths that accept any host name: load balancers use their own."""
_READ_PATHS = ("/search", "/encode")
"""POST paths that change nothing."""
KEY_VARIABLES = ("DIFFRETRIEVER_API_KEY", "DIFFRETRIEVER_READ_KEY")
"""Environment variables of the write key and the read key."""
_LEAST_KEY_CHARS = 16
_BUSY_S = 1
_LOG = logging.getLogger("diffretriever.serving")


@dataclass(frozen=True, slots=True)
class Keys:
    """SHA-256 digests of the API keys. The server does not store the keys."""

    write: bytes | None = None
    """Digest of the key that allows everything."""
    read: bytes | None = None
    """Digest of the key that allows searching only."""

    @classmethod
    def of(cls, write: str | None = None, read: str | None = None) -> Self:
        """Return the digests of keys; raise ValueError if they are equal."""
        if write and write == read:
            raise ValueError("the read key equals the write key: set another read key, or only the write key")
        return cls(*(hashlib.sha256(key.encode()).digest() if key else None for key in (write, read)))

    @classmethod
    def from_environment(cls) -> Self:
        """Read DIFFRETRIEVER_API_KEY and DIFFRETRIEVER_READ_KEY; raise ValueError for a weak key."""
        keys = [os.environ.get(name) for name in KEY_VARIABLES]
        for name, key in zip(KEY_VARIABLES, keys, strict=True):
            if key is not None and len(key) < _LEAST_KEY_CHARS:
                wrong = f"shorter than {_LEAST_KEY_CHARS} characters" if key else "set but empty"
                raise ValueError(f"{name} is {wrong}: set a key, such as from `openssl rand -hex 32`, or unset it")
        return cls.of(*keys)

    @property
    def are_unset(self) -> bool:
        """Whether requests need no key."""
        return self.write is None and self.read is None

    def check(self, key: bytes, *, writes: bool) -> None:
        """Raise a problem unless the key allows the request. Comparison takes constant time."""
        if self.are_unset:
            return
        digest = hashlib.sha256(key).digest()
        may_write, may_read = (
            stored is not None and hmac.compare_digest(digest, stored) for stored in (self.write, self.read)
        )
        if may_write:
            return
        if not may_read:
            raise UnauthorizedError("the request has no valid API key", "send it as `Authorization: Bearer KEY`")
        if writes:
            fix = "send the write key" if self.write else "ask the operator: the server has no write key"
            raise ForbiddenError("this API key may search, but not change the index", fix)


class Guard:
    """ASGI middleware that rejects invalid requests. It reads the body before the request counts as ongoing.

    Attributes:
        ongoing: number of requests in progress.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, keys: Keys, load: Load) -> None:
        self._app, self._keys, self._load = app, keys, load
        self._limits, self._max_ongoing = config.limits, config.max_ongoing
        self._names = frozenset(["localhost", *map(_name_in, config.hosts)])
        self._origins = config.cors_origins
        self._checks_names = "*" not in config.hosts and (keys.are_unset or bool(config.hosts))
        self.ongoing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer with a problem."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_names(scope, headers)
            if _path(scope) in OPEN_PATHS or _path(scope).startswith("/static/"):
                await self._app(scope, receive, send)
                return
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            key = bearer.strip() if scheme.lower() == "bearer" else ""
            self._keys.check(key.encode("latin-1"), writes=_writes(scope))
            max_bytes = self._limits.max_body_bytes
            body = await read_body(receive, max_bytes, self._limits.body_s)
            if len(body["body"]) > max_bytes:
                raise TooLargeError("the body exceeds the size limit", f"send at most {max_bytes} bytes")
            if self.ongoing >= self._max_ongoing:
                raise UnavailableError(f"{self.ongoing} requests are already in progress", _BUSY_S)
            self._count(1)
            try:
                await self._within_time(scope, Replayed(body, receive), send)
            finally:
                self._count(-1)
        except RequestError as problem:
            await problem.response(scope["path"])(scope, receive, send)

    def _check_names(self, scope: Scope, headers: Headers) -> None:
        """Reject requests from pages of other sites.

        With DNS rebinding, a page sends its own name as Host, never an IP address. Otherwise it sends its name as
        Origin.
        """
        if not self._checks_names or _path(scope) in _PROBE_PATHS:
            return
        name = _name_in(headers.get("host", ""))
        if name not in self._names and not is_address(name):
            raise MisdirectedError(name)
        origin = headers.get("origin", "")
        if origin and _writes(scope) and origin not in self._origins and _name_in(origin) not in {name, *self._names}:
            raise CrossSiteError(origin)

    def _count(self, change: int) -> None:
        self.ongoing += change
        self._load.observe(self.ongoing)

    async def _within_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._app(scope, receive, watched)
        except TimeoutError:
            if has_begun:
                raise
            raise UnavailableError(f"no response within {self._limits.timeout_s:g} seconds") from None
        except Exception:
            # The message may quote the request, so it goes to the log only.
            _LOG.exception("a request to %s failed", scope["path"])
            if has_begun:
                raise
            raise InternalError(
                "the request failed in the server", "report it to the operator, whose log has the details"
            ) from None


class SecurityHeaders:
    """ASGI middleware that adds `HEADERS`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and add the headers to its response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


class Replayed:
    """Receives one buffered message again, then further ones."""

    def __init__(self, message: Message, receive: Receive) -> None:
        self._messages, self._receive = [message], receive

    async def __call__(self) -> Message:
        """Return the next message."""
        return self._messages.pop() if self._messages else await self._receive()


async def read_body(receive: Receive, max_bytes: int, seconds: float) -> Message:
    """Return a body as one message; above `max_bytes`, return its first part."""
    body, is_whole = bytearray(), False
    try:
        async with asyncio.timeout(seconds):
            while len(body) <= max_bytes and not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise TooSlowError("the connection was closed before the body ended", "send the whole body")
                body += message.get("body", b"")
                is_whole = not message.get("more_body")
    except TimeoutError:
        raise TooSlowError(f"only {len(body)} bytes have arrived", f"send it within {seconds:g} seconds") from None
    return {"type": "http.request", "body": bytes(body), "more_body": not is_whole}


def _name_in(address: str) -> str:
    try:
        return urlsplit(f"//{address.rpartition('//')[2]}").hostname or ""
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _writes(scope: Scope) -> bool:
    return scope["method"] not in {"GET", "HEAD"} and _path(scope) not in _READ_PATHS
