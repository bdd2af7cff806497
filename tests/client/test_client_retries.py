"""Retries of the clients, and their waits."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from diffretriever.client import AnswerError, ProblemError, Retries, UnreachableError
from tests.client.service import ADDED, FOUND, PASSAGE, Ask, Script, ok, problem

PATIENT = Retries(attempts=4, first_wait=0.25, longest_wait=10)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_retried_after_its_wait(ask: Ask, waits: list[float], status: int) -> None:
    script = Script([problem(status, {"retry-after": "2"}), problem(status), ok(FOUND)])
    assert ask(script, "search", "heat", retries=PATIENT) == FOUND
    assert len(script.requests) == 3
    assert waits[0] == 2
    assert 0.25 <= waits[1] <= 0.5


def test_attempts_are_limited_and_waits_double(ask: Ask, waits: list[float]) -> None:
    script = Script([problem(503)] * 4)
    with pytest.raises(ProblemError) as caught:
        ask(script, "search", "heat", retries=PATIENT)
    assert caught.value.status == 503
    assert len(script.requests) == 4
    assert [low <= wait <= 2 * low for low, wait in zip((0.125, 0.25, 0.5), waits, strict=True)] == [True] * 3


@pytest.mark.parametrize("error", [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("late")])
@pytest.mark.parametrize(("call", "args", "answer"), [("search", "heat", FOUND), ("add_passages", [PASSAGE], ADDED)])
def test_requests_that_were_not_sent_are_retried(
    ask: Ask, waits: list[float], error: Exception, call: str, args: Any, answer: Any
) -> None:
    assert ask(Script([error, ok(answer)]), call, args, retries=PATIENT) == answer
    assert len(waits) == 1


@pytest.mark.parametrize("lost", [httpx2.ReadError("reset"), httpx2.RemoteProtocolError("cut off"), 500, 502, 504])
def test_only_reads_are_retried_after_a_lost_response(ask: Ask, waits: list[float], lost: Any) -> None:
    outcome = httpx2.Response(lost, content=b"of a proxy") if isinstance(lost, int) else lost
    assert ask(Script([outcome, ok(FOUND)]), "search", "heat", retries=PATIENT) == FOUND
    for call, args in (("add_passages", [PASSAGE]), ("delete_passage", "p1")):
        with pytest.raises((UnreachableError, AnswerError)):
            ask(Script([outcome]), call, args, retries=PATIENT)
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("status", "headers"), [(503, {"retry-after": "3600"}), *((each, None) for each in (400, 401, 404, 413, 422, 500))]
)
def test_rejections_long_waits_and_timeouts_are_not_retried(
    ask: Ask, waits: list[float], status: int, headers: dict[str, str] | None
) -> None:
    with pytest.raises(ProblemError):
        ask(Script([problem(status, headers)]), "search", "heat", retries=PATIENT)
    with pytest.raises(UnreachableError, match="timeout_s"):
        ask(Script([httpx2.ReadTimeout("late")]), "search", "heat", retries=PATIENT)
    assert waits == []
