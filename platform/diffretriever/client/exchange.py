"""One exchange with the server: request, retries, response or error. Both clients use it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from diffretriever.schemas.base import error_messages
from diffretriever.schemas.serve import Problem

Answer = TypeVar("Answer", bound=BaseModel)

BUSY = frozenset({429, 503})
"""Statuses of a request that was not processed and may succeed later."""
_GATEWAY = frozenset({500, 502, 504})
"""Statuses, without a problem, of a proxy whose server ended, perhaps after it received the request."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""Errors before the server received the request."""
_LOST = (httpx2.NetworkError, httpx2.RemoteProtocolError)
"""The connection broke, perhaps after the request had arrived. Timeouts are not retried: the server still works on the
request.
"""


class ClientError(Exception):
    """Base class of errors of calls; errors of the HTTP library are never raised.

    Example:
        >>> try:
        ...     client.delete_passage("figs")
        ... except ClientError as error:
        ...     print(error)
        404 id: there is no passage 'figs': check the id
    """


class ProblemError(ClientError):
    """The server rejected the request with a `problem` (RFC 9457), whose `status`, `field` and `fix` it copies.

    Example:
        >>> try:
        ...     client.search("roses", budget=99)
        ... except ProblemError as error:
        ...     print(error.status, error.field, error.fix, sep="; ")
        422; budget; ...
    """

    def __init__(self, status: int, problem: Problem) -> None:
        self.problem, self.status, self.field, self.fix = problem, status, problem.field, problem.fix
        where = f"{problem.field}: " if problem.field else ""
        detail = problem.detail.rstrip(".")
        super().__init__(f"{status} {where}{detail}{'' if detail.endswith('?') else ':'} {problem.fix}")


class AnswerError(ClientError):
    """The response is from another program, a proxy or another version of the server.

    Example:
        >>> page = httpx2.MockTransport(lambda request: httpx2.Response(200, text="<html>"))
        >>> with SearchClient("http://localhost:8000", transport=page) as client:
        ...     client.index()
        Traceback (most recent call last):
        diffretriever.client.exchange.AnswerError: the response is not a valid IndexResponse ...
    """


class UnreachableError(ClientError):
    """No response: the connection was refused or lost, the request timed out, or a proxy is busy.

    Example:
        >>> with SearchClient("http://localhost:9", retries=Retries(attempts=1)) as client:
        ...     client.search("roses")
        Traceback (most recent call last):
        diffretriever.client.exchange.UnreachableError: no response ...: is the server running at this address?
    """


@dataclass(frozen=True, slots=True)
class Retries:
    """Retry policy of a client.

    Attributes:
        attempts: maximum number of attempts, at least 1.
        first_wait: seconds before the second attempt; each further wait doubles.
        longest_wait: maximum seconds; the client gives up if the server requests more.

    Example:
        >>> with SearchClient("http://localhost:8000", retries=Retries(attempts=2, longest_wait=1.0)) as client:
        ...     client.index().modes
        ['dense', ...]
    """

    attempts: int = 4
    first_wait: float = 0.25
    longest_wait: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}: set at least 1 (no retries)")
        if not 0 < self.first_wait <= self.longest_wait:
            raise ValueError("first_wait must be more than 0 seconds and no more than longest_wait")

    def wait(self, sent: int, asked: float | None = None) -> float | None:
        """Return the seconds to wait after `sent` attempts, or None to give up.

        `asked` is the server's `Retry-After`. Without it, the wait is random between half and all of the doubled wait,
        so that clients do not retry at the same time.
        """
        if sent >= self.attempts:
            return None
        if asked is not None:
            return asked if asked <= self.longest_wait else None
        doubled = min(self.first_wait * 2.0 ** min(sent - 1, 64), self.longest_wait)
        return random.uniform(doubled / 2, doubled)  # noqa: S311


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A request, with the rules for its responses."""

    method: str
    path: str
    answer: type[Answer]
    """Model of a successful response."""
    body: BaseModel | None = None
    """JSON body, sent without default values."""
    reads: bool = True
    """Whether the request changes nothing, so that it is safe to repeat."""

    @property
    def content(self) -> bytes | None:
        """Bytes of the body."""
        return None if self.body is None else self.body.model_dump_json(exclude_defaults=True).encode()

    def settle(self, outcome: httpx2.Response | httpx2.HTTPError, retries: Retries, sent: int) -> Answer | float:
        """Return the response, or the seconds before the next attempt; raise ClientError on failure."""
        wait = None
        if isinstance(outcome, httpx2.HTTPError):
            if isinstance(outcome, _NOT_SENT) or (self.reads and isinstance(outcome, _LOST)):
                wait = retries.wait(sent)
            if wait is None:
                raise _unanswered(outcome, sent) from outcome
            return wait
        problem = None if outcome.is_success else _problem(outcome.content)
        if outcome.status_code in BUSY:
            asked = outcome.headers.get("retry-after", "")
            wait = retries.wait(sent, float(asked) if asked.isdecimal() else None)
        elif self.reads and outcome.status_code in _GATEWAY and problem is None:
            wait = retries.wait(sent)
        if wait is not None:
            return wait
        if problem is not None:
            raise ProblemError(outcome.status_code, problem)
        if outcome.status_code in BUSY:
            raise UnreachableError(f"the server is busy or restarting (status {outcome.status_code}): try again later")
        if not outcome.is_success:
            status = f"status {outcome.status_code}"
            raise AnswerError(f"{status} without a problem that explains it: is this the server's address?")
        return self._read(outcome.content)

    def _read(self, content: bytes) -> Answer:
        try:
            return self.answer.model_validate_json(content)
        except ValidationError as error:
            raise AnswerError(
                f"the response is not a valid {self.answer.__name__} ({error_messages(error)[0]}): is the address "
                "right, and is the server of this client's version?"
            ) from error


def _unanswered(error: httpx2.HTTPError, sent: int) -> ClientError:
    name, tries = type(error).__name__, "once" if sent == 1 else f"{sent} times"
    if isinstance(error, httpx2.DecodingError):
        return AnswerError(f"the response cannot be decompressed ({name})")
    if isinstance(error, httpx2.TimeoutException):
        return UnreachableError(f"no response in time ({name}), tried {tries}: raise timeout_s, or request less")
    return UnreachableError(f"no response ({name}: {error}), tried {tries}: is the server running at this address?")


def _problem(content: bytes) -> Problem | None:
    try:
        return Problem.model_validate_json(content)
    except ValidationError:
        return None
