"""What becomes of a request that was sent: its answer, another try, or an error. The same for both clients."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2
from pydantic import ValidationError

from diffretriever.client.calls import Answer, Call
from diffretriever.schemas.serve import Problem

BUSY = frozenset({429, 503})
"""Answers of a service that has not done what it was asked, and may do it later."""

_DIED = frozenset({500, 502, 504})
"""Without a problem: what a proxy answers for a service that ended, perhaps after the request had arrived."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""The service has not seen the request."""

_LOST = (httpx2.NetworkError, httpx2.RemoteProtocolError)
"""The connection broke, perhaps after the request had arrived. A timeout is none of these: the service is at work, and
sending the request again would double its load."""

_RANDOM = random.SystemRandom()


class ClientError(Exception):
    """Base of all that the client raises once it is made; nothing of the HTTP library comes through."""


class ProblemError(ClientError):
    """The service refused the request and said why (RFC 9457).

    Attributes:
        problem: the whole answer.
        status: HTTP status, such as 422.
        field: the part of the request that is wrong, where one is.
        fix: what to do about it.
    """

    def __init__(self, status: int, problem: Problem) -> None:
        self.problem = problem
        self.status = status
        self.field = problem.field
        self.fix = problem.fix
        where = f"{problem.field}: " if problem.field else ""
        detail = problem.detail.rstrip(".")
        super().__init__(f"{status} {where}{detail}{'' if detail.endswith('?') else '.'} {problem.fix}")


class AnswerError(ClientError):
    """Something answered, but not what this client understands: another program, a proxy, or another version."""


class UnreachableError(ClientError):
    """No answer: the connection was refused or lost, the time was up, or all that answers is a proxy that is busy."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How patient a client is.

    Attributes:
        attempts: most times that a request is sent, at least 1.
        first_wait: seconds before the second time; it doubles from then on.
        longest_wait: seconds; a service that asks for more is not asked again.
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

        `asked` is what the service asked for. Else the time is drawn between half and all of the doubled wait, so
        that many clients turned away together do not come back together.
        """
        if sent >= self.attempts:
            return None
        if asked is not None:
            return asked if asked <= self.longest_wait else None
        doubled = min(self.first_wait * 2.0 ** min(sent - 1, 64), self.longest_wait)
        return _RANDOM.uniform(doubled / 2, doubled)


@dataclass(frozen=True, slots=True)
class Wait:
    """Send the request once more after so many seconds."""

    seconds: float


def settle(
    call: Call[Answer], outcome: httpx2.Response | httpx2.HTTPError, retries: Retries, sent: int
) -> Answer | Wait:
    """Return the answer, or how long to wait before the next try.

    Args:
        call: that was made.
        outcome: what came of it, an answer or an error of the HTTP library.
        retries: how patient the client is.
        sent: how many times the request has been sent.

    Raises:
        ProblemError: the service refused.
        AnswerError: the answer is not what this client understands.
        UnreachableError: there was no answer, and there are no tries left or none is safe.
    """
    if isinstance(outcome, httpx2.HTTPError):
        wait = retries.wait(sent) if _may_repeat(call, outcome) else None
        if wait is None:
            raise _unanswered(outcome, sent) from outcome
        return Wait(wait)
    if outcome.status_code in BUSY:
        wait = retries.wait(sent, retry_after(outcome.headers))
        if wait is not None:
            return Wait(wait)
    if call.reads and outcome.status_code in _DIED and _problem(outcome.content) is None:
        wait = retries.wait(sent)
        if wait is not None:
            return Wait(wait)
    return _read(call, outcome)


def _may_repeat(call: Call[Answer], error: httpx2.HTTPError) -> bool:
    return isinstance(error, _NOT_SENT) or (call.reads and isinstance(error, _LOST))


def _unanswered(error: httpx2.HTTPError, sent: int) -> ClientError:
    name = type(error).__name__
    if isinstance(error, httpx2.DecodingError):
        return AnswerError(f"the answer cannot be decompressed ({name})")
    tries = "once" if sent == 1 else f"{sent} times"
    if isinstance(error, httpx2.TimeoutException):
        return UnreachableError(f"no answer in time ({name}), tried {tries}: raise timeout_s, or ask for less")
    return UnreachableError(f"no answer ({name}: {error}), tried {tries}: is the service running at this address?")


def _read(call: Call[Answer], response: httpx2.Response) -> Answer:
    status = response.status_code
    if not 200 <= status < 300:
        raise _refusal(status, response.content)
    try:
        return call.answer.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise AnswerError(
            f"the answer is no {call.answer.__name__} ({where}: {first['msg']}): is the address right, and is the "
            "service of this client's version?"
        ) from error


def _refusal(status: int, content: bytes) -> ClientError:
    problem = _problem(content)
    if problem is not None:
        return ProblemError(status, problem)
    if status in BUSY:
        return UnreachableError(f"the service is busy or restarting (status {status}): try again later")
    return AnswerError(f"status {status} without a problem that explains it: is the address that of the service?")


def _problem(content: bytes) -> Problem | None:
    try:
        return Problem.model_validate_json(content)
    except ValidationError:
        return None


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that `Retry-After` asks for, a number or a date (RFC 9110 §10.2.3); None if it is no such."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
