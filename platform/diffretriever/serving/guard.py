"""What stands before the routes: names, API keys, how many requests at a time, how large and how slow a body may be.

It also adds the headers that every answer has.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serving.load import Load
from diffretriever.serving.problems import (
    ForbiddenError,
    ForeignError,
    InternalError,
    MisdirectedError,
    RequestError,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    UnavailableError,
)

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
OPEN = ("/", "/compare", "/docs", "/healthz", "/readyz", "/openapi.json")
"""Paths that need no key and are answered at once, like the page's files: they tell nothing of the index."""
_PROBES = ("/healthz", "/readyz")
"""Paths that answer by whatever name: balancers ask by their own."""
_FILES = "/static/"
_READING = ("/search", "/encode")
"""Paths that change nothing though their method is POST."""
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
KEY_VARIABLES = ("DIFFRETRIEVER_API_KEY", "DIFFRETRIEVER_READ_KEY")
"""Of the environment: the keys for writing and for reading."""
_LEAST_KEY_CHARS = 16
_NO_WEBSOCKETS = 1008
_BUSY_S = 1
_YOUNG_S = 0.5
"""Seconds for which a body may count as one that comes at once, however busy the machine is."""
_LOG = logging.getLogger("diffretriever.serving")


@dataclass(frozen=True, slots=True)
class Keys:
    """The SHA-256 of each API key, which is all that a server keeps of them.

    Attributes:
        write: of the key that may do everything.
        read: of the key that may search, and change nothing. Where there is only this one, nobody can write.
    """

    write: bytes | None = None
    read: bytes | None = None

    @classmethod
    def of(cls, write: str | None = None, read: str | None = None) -> Self:
        """Return the digests of keys, of which either may be missing.

        Raises:
            ValueError: both are the same, or one is empty, as that of a request without a key is.
        """
        if "" in (write, read):
            raise ValueError("an API key is empty")
        if write and write == read:
            raise ValueError("the keys for reading and for writing are the same: give two, or the second alone")
        return cls(*(hashlib.sha256(key.encode()).digest() if key else None for key in (write, read)))

    @classmethod
    def from_environment(cls) -> Self:
        """Return those of DIFFRETRIEVER_API_KEY and DIFFRETRIEVER_READ_KEY, of which either may be unset.

        Raises:
            ValueError: one is too short, as an empty one is, or both are the same.
        """
        keys = [os.environ.get(name) for name in KEY_VARIABLES]
        for name, key in zip(KEY_VARIABLES, keys, strict=True):
            if key is not None and len(key) < _LEAST_KEY_CHARS:
                wrong = f"shorter than {_LEAST_KEY_CHARS} characters" if key else "set but empty"
                raise ValueError(f"{name} is {wrong}: give it a key such as `openssl rand -hex 32` makes, or unset it")
        return cls.of(*keys)

    @property
    def are_none(self) -> bool:
        """Whether requests need no key."""
        return self.write is None and self.read is None

    def check(self, given: bytes, *, writes: bool) -> None:
        """Raise unless a key is enough for a request; both are compared, each in the same time whatever is given.

        Raises:
            UnauthorizedError: it is none of the keys.
            ForbiddenError: it may not write.
        """
        if self.are_none:
            return
        digest = hashlib.sha256(given).digest()
        may_write, may_read = (key is not None and hmac.compare_digest(digest, key) for key in (self.write, self.read))
        if may_write:
            return
        if not may_read:
            raise UnauthorizedError("the request has no valid API key", "send it as `Authorization: Bearer KEY`")
        if writes:
            fix = "send the key for writing" if self.write else "ask whoever runs it: there is no key for writing"
            raise ForbiddenError("this API key may search, and not change the index", fix)


class Bodies:
    """The bodies that are being read, so many at a time. To be used from one event loop.

    Where there is no room, the one that has been coming for longest makes room for the next.
    """

    def __init__(self, most: int, seconds: float) -> None:
        """Let at most `most` bodies come at a time, each for at most so many seconds."""
        self._most, self._seconds = most, seconds
        self._coming: dict[asyncio.Timeout, float] = {}
        """When each was begun, the oldest first."""

    async def read(self, receive: Receive, most_bytes: int) -> Message:
        """Return a body as one message, up to its end or until there are more than so many bytes.

        Raises:
            TooSlowError: the body did not end in time, or the client went away.
            UnavailableError: too many bodies have begun to come at this moment.
        """
        parts: list[bytes] = []
        size, is_ended = 0, False
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                self._make_room()
                self._coming[deadline] = asyncio.get_running_loop().time()
                try:
                    while size <= most_bytes and not is_ended:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise TooSlowError("the connection was closed before its end", "send the whole body")
                        parts.append(message.get("body", b""))
                        size, is_ended = size + len(parts[-1]), not message.get("more_body")
                finally:
                    self._coming.pop(deadline, None)
        except TimeoutError:
            fix = f"send it at once: a body has {self._seconds:g} seconds, and less where many come slowly"
            raise TooSlowError(f"{size} bytes have arrived", fix) from None
        return {"type": "http.request", "body": b"".join(parts), "more_body": not is_ended}

    def _make_room(self) -> None:
        if len(self._coming) < self._most:
            return
        now = asyncio.get_running_loop().time()
        oldest = next(iter(self._coming))
        if now - self._coming[oldest] < _YOUNG_S:
            raise UnavailableError(f"{self._most} bodies are being read already", _BUSY_S)
        del self._coming[oldest]
        oldest.reschedule(now)


class Guard:
    """ASGI middleware. A request that passes has its whole body read, so that no slow client holds up the work.

    Attributes:
        ongoing: requests that are being worked on.
    """

    def __init__(self, app: App, config: ServeConfig, keys: Keys, load: Load) -> None:
        """Stand before an application.

        Args:
            app: what requests are passed on to.
            config: of the application.
            keys: that requests need.
            load: what is told how many requests are being worked on.
        """
        self._app, self._keys, self._load = app, keys, load
        self._limits, self._most = config.limits, config.max_ongoing
        self._names = frozenset(["localhost", *map(_name_in, config.hosts)])
        self._origins = config.cors_origins
        self._checks_names = "*" not in config.hosts and (keys.are_none or bool(config.hosts))
        self.ongoing = 0
        self._bodies = Bodies(config.max_ongoing, config.limits.body_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _NO_WEBSOCKETS})
            return
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._check_names(scope)
            if _is_open(scope):
                await self._app(scope, receive, send)
                return
            self._check_key(scope)
            await self._admit(scope, receive, send)
        except RequestError as refused:
            await send_problem(refused, scope, send)

    def _check_names(self, scope: Scope) -> None:
        """Raise where a browser takes this server for another site, or has another site's page change the index.

        A page whose own name is made to lead here (DNS rebinding) is sent by that name; by an address it cannot be.
        """
        if not self._checks_names or _path(scope) in _PROBES:
            return
        headers = dict(scope["headers"])
        name = _name_in(headers.get(b"host", b"").decode("latin-1"))
        if name not in self._names and not is_address(name):
            raise MisdirectedError(name)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _writes(scope) and origin not in self._origins and _name_in(origin) not in {name, *self._names}:
            raise ForeignError(origin)

    def _check_key(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        self._keys.check(given, writes=_writes(scope))

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A body that comes slowly must not take the place of a request that could be worked on.
        most = self._limits.max_body_bytes
        body = await self._bodies.read(receive, most)
        if len(body["body"]) > most:
            raise TooLargeError("the body has more bytes than the server takes", f"send at most {most} bytes")
        if self.ongoing >= self._most:
            raise UnavailableError(f"{self.ongoing} requests are being worked on already", _BUSY_S)
        self._count(1)
        try:
            await self._within_time(scope, Replayed(body, receive), send)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.ongoing += change
        self._load.observe(self.ongoing)

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


def _name_in(address: str) -> str:
    """Return the host of a Host or Origin header, in lower case; empty where there is none."""
    try:
        return urlsplit(f"//{address.rpartition('//')[2]}").hostname or ""
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _is_open(scope: Scope) -> bool:
    return _path(scope) in OPEN or _path(scope).startswith(_FILES)


def _writes(scope: Scope) -> bool:
    """Return whether a request may change the index: what is not known to read is taken to write."""
    return scope["method"] not in {"GET", "HEAD"} and _path(scope) not in _READING


class Replayed:
    """A message that was received, given to whoever receives next, and then those that come."""

    def __init__(self, message: Message, receive: Receive) -> None:
        self._message: Message | None = message
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the next message."""
        if self._message is None:
            return await self._receive()
        message, self._message = self._message, None
        return message


async def send_problem(refused: RequestError, scope: Scope, send: Send) -> None:
    """Answer with a problem."""
    body = refused.problem(str(scope["path"])).model_dump_json().encode()
    headers = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), **refused.headers()}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
