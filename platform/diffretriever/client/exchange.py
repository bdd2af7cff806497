"""One exchange with the service: the request, its retries, the answer or the error. Both clients use it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from diffretriever.schemas.serve import Problem

Answer = TypeVar("Answer", bound=BaseModel)

BUSY = frozenset({429, 503})
"""The service has not done the work, and may do it later."""
_DIED = frozenset({500, 502, 504})
"""Without a problem: a proxy answers for a service that ended, perhaps after the request had arrived."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""The service has not received the request."""
_LOST = (httpx2.NetworkError, httpx2.RemoteProtocolError)
"""The connection broke, perhaps after the request had arrived. After a timeout the service is still at work: to send
the request again would double its load."""


class ClientError(Exception):
    """Base of the errors of calls; errors of the HTTP library are never raised."""


class ProblemError(ClientError):
    """The service rejected the request with a `problem` (RFC 9457), whose `status`, `field` and `fix` it has too."""

    def __init__(self, status: int, problem: Problem) -> None:
        self.problem, self.status, self.field, self.fix = problem, status, problem.field, problem.fix
        where = f"{problem.field}: " if problem.field else ""
        detail = problem.detail.rstrip(".")
        super().__init__(f"{status} {where}{detail}{'' if detail.endswith('?') else '.'} {problem.fix}")


class AnswerError(ClientError):
    """The response is not one of the service: another program or a proxy answers, or another version."""


class UnreachableError(ClientError):
    """No response: the connection was refused or lost, the request timed out, or a proxy is busy."""


@dataclass(frozen=True, slots=True)
class Retries:
    """When a client sends a request again.

    Attributes:
        attempts: most times that a request is sent, at least 1.
        first_wait: seconds before the second attempt; it doubles from then on.
        longest_wait: seconds; the client gives up if the service asks for more.
    """

    attempts: int = 4
    first_wait: float = 0.25
    longest_wait: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}: give at least 1, which is no retry")
        if not 0 < self.first_wait <= self.longest_wait:
            raise ValueError("first_wait must be more than 0 seconds and no more than longest_wait")

    def wait(self, sent: int, asked: float | None = None) -> float | None:
        """Return the seconds to wait after the request was sent `sent` times, or None to give up.

        `asked` is the service's `Retry-After`. Without it the time is random between half and all of the doubled wait,
        so that clients rejected together do not return together.
        """
        if sent >= self.attempts:
            return None
        if asked is not None:
            return asked if asked <= self.longest_wait else None
        doubled = min(self.first_wait * 2.0 ** min(sent - 1, 64), self.longest_wait)
        return random.uniform(doubled / 2, doubled)  # noqa: S311


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request, and the meaning of its responses."""

    method: str
    path: str
    answer: type[Answer]
    """Model of a successful response."""
    body: BaseModel | None = None
    """Sent as JSON, without its defaults."""
    reads: bool = True
    """Whether it changes nothing, so that it may be sent again if it may have arrived."""

    @property
    def content(self) -> bytes | None:
        """The bytes of the body."""
        return None if self.body is None else self.body.model_dump_json(exclude_defaults=True).encode()

    def settle(self, outcome: httpx2.Response | httpx2.HTTPError, retries: Retries, sent: int) -> Answer | float:
        """Return the answer, or the seconds to wait before the next attempt; raise a `ClientError` if there is none."""
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
        elif self.reads and outcome.status_code in _DIED and problem is None:
            wait = retries.wait(sent)
        if wait is not None:
            return wait
        if problem is not None:
            raise ProblemError(outcome.status_code, problem)
        if outcome.status_code in BUSY:
            raise UnreachableError(f"the service is busy or restarting (status {outcome.status_code}): try again later")
        if not outcome.is_success:
            status = f"status {outcome.status_code}"
            raise AnswerError(f"{status} without a problem that explains it: is the address that of the service?")
        return self._read(outcome.content)

    def _read(self, content: bytes) -> Answer:
        try:
            return self.answer.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise AnswerError(
                f"the answer is no {self.answer.__name__} ({where}: {first['msg']}): is the address right, and is the "
                "service of this client's version?"
            ) from error


def _unanswered(error: httpx2.HTTPError, sent: int) -> ClientError:
    name, tries = type(error).__name__, "once" if sent == 1 else f"{sent} times"
    if isinstance(error, httpx2.DecodingError):
        return AnswerError(f"the answer cannot be decompressed ({name})")
    if isinstance(error, httpx2.TimeoutException):
        return UnreachableError(f"no answer in time ({name}), tried {tries}: raise timeout_s, or ask for less")
    return UnreachableError(f"no answer ({name}: {error}), tried {tries}: is the service running at this address?")


def _problem(content: bytes) -> Problem | None:
    try:
        return Problem.model_validate_json(content)
    except ValidationError:
        return None
