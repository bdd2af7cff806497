"""Everything that can be wrong with a request, each as an exception that becomes a problem of RFC 9457."""

from __future__ import annotations

from diffretriever.schemas.base import shortened
from diffretriever.schemas.serve import Problem

_NAMES = "use localhost or the server's IP address, or add the name to its setting `hosts`"
RETRY_AFTER_S = 2
"""Seconds that a client is told to wait where the server cannot say."""


class RequestError(Exception):
    """A request that is answered with a problem; a subclass is a kind of problem.

    Attributes:
        status: HTTP status.
        kind: name of the kind, for programs.
        title: the same for people.
        retry_after: seconds, where trying again may help.
    """

    status = 422
    kind = "invalid"
    title = "The request is not valid"
    retry_after: int | None = None

    def __init__(self, detail: str, fix: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.detail, self.fix, self.field = detail, fix, field

    def problem(self, path: str) -> Problem:
        """Return what the client is sent; `path` is what it asked for."""
        return Problem(
            type=f"urn:diffretriever:problem:{self.kind}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            field=self.field and shortened(self.field),
            fix=self.fix,
            instance=shortened(path),
        )

    def headers(self) -> dict[str, str]:
        """Return the headers that go with it."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class InvalidError(RequestError):
    """A field has a value that cannot be used."""


class MalformedError(RequestError):
    """The body cannot be read."""

    status, kind, title = 400, "malformed", "The request cannot be read"


class UnauthorizedError(RequestError):
    """The API key is missing or wrong."""

    status, kind, title = 401, "unauthorized", "An API key is needed"

    def headers(self) -> dict[str, str]:
        """Name the scheme."""
        return {"WWW-Authenticate": "Bearer"}


class ForbiddenError(RequestError):
    """The API key is good for less than what was asked."""

    status, kind, title = 403, "forbidden", "The API key is not enough"

    def headers(self) -> dict[str, str]:
        """Say so as RFC 6750 §3.1 does."""
        return {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}


class ForeignError(RequestError):
    """A page of another site sends the request."""

    status, kind, title = 403, "foreign", "Another site may not change the index"

    def __init__(self, origin: str) -> None:
        super().__init__(f"a page of '{shortened(origin)}' may not change the index", _NAMES)


class NotFoundError(RequestError):
    """Nothing is there."""

    status, kind, title = 404, "not-found", "Nothing is there"


class NotAllowedError(RequestError):
    """The path is there, and takes other methods."""

    status, kind, title = 405, "method", "The path takes other methods"

    def __init__(self, detail: str, fix: str, allowed: str) -> None:
        super().__init__(detail, fix)
        self._allowed = allowed

    def headers(self) -> dict[str, str]:
        """Name the methods it takes."""
        return {"Allow": self._allowed}


class TooSlowError(RequestError):
    """The body did not arrive in time."""

    status, kind, title = 408, "slow-body", "The body did not arrive in time"

    def headers(self) -> dict[str, str]:
        """Have the connection closed: what still comes on it is the rest of the body."""
        return {"Connection": "close"}


class TooLargeError(RequestError):
    """The body has too many bytes."""

    status, kind, title = 413, "too-large", "The body is too large"

    def headers(self) -> dict[str, str]:
        """Have the connection closed, likewise."""
        return {"Connection": "close"}


class UnsupportedError(RequestError):
    """The body is said to be something other than JSON, or nothing is said of it."""

    status, kind, title = 415, "content-type", "The body is not sent as JSON"

    def __init__(self, content_type: str) -> None:
        said = f"the body is sent as {shortened(content_type)}" if content_type else "nothing says what the body is"
        super().__init__(said, "send it with the header `content-type: application/json`", "content-type")


class MisdirectedError(RequestError):
    """The Host header names another server."""

    status, kind, title = 421, "host", "The request is for another server"

    def __init__(self, name: str) -> None:
        super().__init__(f"this server does not answer for '{shortened(name)}'", _NAMES)


class InternalError(RequestError):
    """A mistake of the server's; what it was stands in its log, not in the answer."""

    status, kind, title = 500, "internal", "The server made a mistake"


class UnavailableError(RequestError):
    """The server cannot answer now: overloaded, restarting, or another job writes to the index."""

    status, kind, title = 503, "unavailable", "The server cannot answer now"

    def __init__(self, detail: str, retry_after: int = RETRY_AFTER_S) -> None:
        super().__init__(detail, f"send the same request again after {retry_after} seconds")
        self.retry_after = retry_after
