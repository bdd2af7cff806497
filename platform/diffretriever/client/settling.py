"""What becomes of a request that was sent: its answer, an error, or another try. The same for both clients."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2
from pydantic import ValidationError

from diffretriever.client.calls import Answer, Call
from diffretriever.client.errors import AnswerError, ClientError, ProblemError, UnreachableError
from diffretriever.client.retries import BUSY, Retries, retry_after
from schemas.serve import Problem

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""The service has not seen the request."""
_LOST = (httpx2.NetworkError, httpx2.RemoteProtocolError)
"""The connection broke, perhaps after the request had arrived. A timeout is none of these: the service is at work, and
sending the request again would double its load."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Send the request once more after so many seconds."""

    seconds: float


def settle(
    call: Call[Answer], outcome: httpx2.Response | httpx2.HTTPError, retries: Retries, sent: int
) -> Answer | Wait:
    """Return the answer, or how long to wait before the next try, the request having been sent `sent` times.

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
    try:
        return ProblemError(status, Problem.model_validate_json(content))
    except ValidationError:
        pass
    if status in BUSY:
        return UnreachableError(f"the service is busy or restarting (status {status}): try again later")
    return AnswerError(f"status {status} without a problem that explains it: is the address that of the service?")
