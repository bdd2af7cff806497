"""Errors of requests, as exceptions that become problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from diffretriever.schemas.base import shortened
from diffretriever.schemas.serve import Problem

_NAMES = "use localhost or the server's IP address, or add the name to its setting `hosts`"


class RequestError(Exception):
    """A request that is answered with a problem; each subclass is a kind of problem.

    Attributes:
        status: HTTP status.
        kind: identifier of the kind.
        title: description of the kind.
        headers: response headers.
    """

    status = 422
    kind = "invalid"
    title = "The request is not valid"
    headers: Mapping[str, str] = {}

    def __init__(self, detail: str, fix: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.detail, self.fix, self.field = detail, fix, field

    def response(self, path: str) -> Response:
        """Return the response to a request for `path`."""
        problem = Problem(
            type=f"urn:diffretriever:problem:{self.kind}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            field=self.field and shortened(self.field),
            fix=self.fix,
            instance=shortened(path),
        )
        return Response(problem.model_dump_json(), self.status, self.headers, "application/problem+json")


class InvalidError(RequestError):
    """A field has an invalid value."""


class MalformedError(RequestError):
    """The body cannot be read."""

    status, kind, title = 400, "malformed", "The request cannot be read"


class UnauthorizedError(RequestError):
    """The API key is missing or wrong."""

    status, kind, title = 401, "unauthorized", "An API key is needed"
    headers = {"WWW-Authenticate": "Bearer"}  # noqa: RUF012


class ForbiddenError(RequestError):
    """The API key does not allow the request (RFC 6750, section 3.1)."""

    status, kind, title = 403, "forbidden", "The API key does not allow this"
    headers = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}  # noqa: RUF012


class CrossSiteError(RequestError):
    """A page of another site sent the request."""

    status, kind, title = 403, "cross-site", "Pages of other sites cannot change the index"

    def __init__(self, origin: str) -> None:
        super().__init__(f"the request comes from a page of '{shortened(origin)}'", _NAMES)


class NotFoundError(RequestError):
    """The path or the passage does not exist."""

    status, kind, title = 404, "not-found", "Not found"


class NotAllowedError(RequestError):
    """The path does not support this method."""

    status, kind, title = 405, "method", "The path does not support this method"

    def __init__(self, allowed: str) -> None:
        super().__init__("the path does not support this method", f"use {allowed}")
        self.headers = {"Allow": allowed}


class TooSlowError(RequestError):
    """The body did not arrive in time. The connection is closed, because the rest may still come."""

    status, kind, title = 408, "slow-body", "The body did not arrive in time"
    headers = {"Connection": "close"}  # noqa: RUF012


class TooLargeError(RequestError):
    """The body exceeds the size limit."""

    status, kind, title = 413, "too-large", "The body is too large"
    headers = {"Connection": "close"}  # noqa: RUF012


class UnsupportedError(RequestError):
    """The content type of the body is not JSON."""

    status, kind, title = 415, "content-type", "The content type is not JSON"

    def __init__(self, content_type: str) -> None:
        detail = f"the content type is {shortened(content_type)}" if content_type else "the request has no content type"
        super().__init__(detail, "send JSON with the header `content-type: application/json`", "content-type")


class MisdirectedError(RequestError):
    """The Host header names another server."""

    status, kind, title = 421, "host", "The request is for another server"

    def __init__(self, name: str) -> None:
        super().__init__(f"the Host header names '{shortened(name)}', which is not a name of this server", _NAMES)


class InternalError(RequestError):
    """A server error; its log has the details."""

    status, kind, title = 500, "internal", "Internal server error"


class UnavailableError(RequestError):
    """The server is overloaded or restarting, or another job writes to the index."""

    status, kind, title = 503, "unavailable", "The server cannot process the request now"

    def __init__(self, detail: str, retry_after: int = 2) -> None:
        super().__init__(detail, f"retry after {retry_after} seconds")
        self.headers = {"Retry-After": str(retry_after)}
