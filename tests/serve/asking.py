"""Requests to the served application, from one thread or several."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from diffretriever.schemas.mode import Mode

MODES: tuple[Mode, ...] = ("dense", "sparse", "hybrid", "bm25", "dense+sparse+bm25")
KEY = "a-key-for-the-tests"
BEARER = {"Authorization": f"Bearer {KEY}"}
LIMIT_S = 3600.0
"""Timeout of a request, longer than any test takes."""
MEASURED_S = 1.0
"""Seconds after which Ray's Prometheus endpoint has new figures, at the earliest."""
SETTINGS = {"device": "cpu", "open": True, "refresh_s": 0.3, "limits.timeout_s": LIMIT_S, "limits.body_s": LIMIT_S}


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = client.post("/search", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def run(call: Callable[[], Awaitable[Any]]) -> Any:
    async def in_time() -> Any:
        async with asyncio.timeout(LIMIT_S / 4):
            return await call()

    return asyncio.run(in_time())


def pairs(answer: Any) -> list[list[tuple[str, float]]]:
    return [[(hit["id"], hit["score"]) for hit in result["hits"]] for result in answer["results"]]


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work` in threads; raise what one of them raised."""
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def wait_until(true: Callable[[], bool], pause_s: float = 0.1) -> None:
    while not true():
        time.sleep(pause_s)


@dataclass(frozen=True)
class Answer:
    """Of one request, asked at `asked` by the monotonic clock."""

    asked: float
    seconds: float
    response: httpx2.Response

    @property
    def status(self) -> int:
        return self.response.status_code


def keep_asking(url: str, is_enough: Callable[[list[Answer]], bool], **body: Any) -> list[Answer]:
    """Ask from three threads until the answers so far are enough; fail if a connection is lost."""
    answers: list[Answer] = []
    end = time.monotonic() + LIMIT_S

    def one(_: int) -> None:
        with httpx2.Client(headers=BEARER, timeout=LIMIT_S) as client:
            while not answers or not is_enough(answers):
                asked = time.monotonic()
                assert asked < end
                response = client.post(f"{url}/search", json=body)
                answers.append(Answer(asked, time.monotonic() - asked, response))
                # A replica that starts meanwhile needs the processor, too.
                time.sleep(0.02 if response.status_code == 200 else 0.1)

    in_threads(one, 3)
    return answers


def note_measured(seen: dict[str, set[str]], exposed: str, application: str) -> None:
    """Add to `seen` the measurements of an application by name, with their stages, kinds or levels.

    On a busy machine an exposition may lack some: Ray's agent drops a gauge of which it has not heard for two seconds.
    """
    for line in exposed.splitlines():
        if f'application="{application}"' in line:
            tags = seen.setdefault(line.partition("{")[0], set())
            tags.add("".join(re.findall(r'(?:stage|kind|level)="(\w+)"', line)))
