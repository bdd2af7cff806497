"""When a client asks again, how long it waits, and when it must not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest

from diffretriever.client import AnswerError, ProblemError, Retries, UnreachableError
from diffretriever.client.exchange import retry_after
from tests.client.service import ADDED, FOUND, PASSAGE, Ask, Script, ok, problem

PATIENT = Retries(attempts=4, first_wait=0.25, longest_wait=10)


@pytest.mark.parametrize("status", [429, 503])
def test_turned_away_and_let_in(ask: Ask, waits: list[float], status: int) -> None:
    script = Script([problem(status, {"retry-after": "2"}), problem(status), ok(FOUND)])
    assert ask(script, "search", "heat", retries=PATIENT) == FOUND
    assert len(script.requests) == 3
    assert waits[0] == 2
    assert 0.25 <= waits[1] <= 0.5


def test_gives_up_with_the_last_answer(ask: Ask, waits: list[float]) -> None:
    script = Script([problem(503)] * 4)
    with pytest.raises(ProblemError) as caught:
        ask(script, "search", "heat", retries=PATIENT)
    assert caught.value.status == 503
    assert len(script.requests) == 4
    assert [low <= wait <= 2 * low for low, wait in zip((0.125, 0.25, 0.5), waits, strict=True)] == [True] * 3


def test_busy_proxy_without_a_problem(ask: Ask, waits: list[float]) -> None:
    with pytest.raises(UnreachableError, match="503"):
        ask(Script([httpx2.Response(503, content=b"busy")] * 2), "search", "heat", retries=Retries(attempts=2))
    assert len(waits) == 1


@pytest.mark.parametrize("error", [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("late")])
@pytest.mark.parametrize(("call", "args", "answer"), [("search", "heat", FOUND), ("add_passages", [PASSAGE], ADDED)])
def test_what_never_arrived_is_sent_again(
    ask: Ask, waits: list[float], error: Exception, call: str, args: Any, answer: Any
) -> None:
    assert ask(Script([error, ok(answer)]), call, args, retries=PATIENT) == answer
    assert len(waits) == 1


@pytest.mark.parametrize("error", [httpx2.ReadError("reset"), httpx2.RemoteProtocolError("cut off")])
def test_lost_answers_are_asked_for_again_unless_something_was_written(
    ask: Ask, waits: list[float], error: Exception
) -> None:
    assert ask(Script([error, ok(FOUND)]), "search", "heat", retries=PATIENT) == FOUND
    for call, args in (("add_passages", [PASSAGE]), ("delete_passage", "p1")):
        script = Script([error])
        with pytest.raises(UnreachableError, match="once"):
            ask(script, call, args, retries=PATIENT)
        assert len(script.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 504])
def test_what_a_proxy_answers_for_a_dead_service_is_asked_again_unless_something_was_written(
    ask: Ask, waits: list[float], status: int
) -> None:
    died = httpx2.Response(status, content=b"Internal Server Error")
    assert ask(Script([died, ok(FOUND)]), "search", "heat", retries=PATIENT) == FOUND
    assert len(waits) == 1
    script = Script([died])
    with pytest.raises(AnswerError):
        ask(script, "add_passages", [PASSAGE], retries=PATIENT)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("status", "headers"), [(503, {"retry-after": "3600"}), *((each, None) for each in (400, 401, 404, 413, 422, 500))]
)
def test_not_repeated(ask: Ask, waits: list[float], status: int, headers: dict[str, str] | None) -> None:
    """A refusal stays one, and a wait of an hour is too long."""
    with pytest.raises(ProblemError):
        ask(Script([problem(status, headers)]), "search", "heat", retries=PATIENT)
    assert waits == []


def test_a_slow_service_is_not_given_more_to_do(ask: Ask, waits: list[float]) -> None:
    with pytest.raises(UnreachableError, match="timeout_s"):
        ask(Script([httpx2.ReadTimeout("late")]), "search", "heat", retries=PATIENT)
    assert waits == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"attempts": 0}, "attempts"), ({"first_wait": 0.0}, "first_wait"), ({"longest_wait": 0.1}, "first_wait")],
)
def test_impossible_patience_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retries(**options)


def test_retry_after_is_a_number_or_a_date() -> None:
    now = datetime(2026, 11, 21, 9, tzinfo=UTC)
    later = format_datetime(now + timedelta(seconds=90), usegmt=True)
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after": later}, now) == 90
    assert retry_after({"retry-after": later}, now + timedelta(hours=1)) == 0
    assert retry_after({}) is None
