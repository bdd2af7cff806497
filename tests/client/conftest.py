"""Both clients, without waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.client.service import Ask, awaited, blocking


@pytest.fixture(params=[blocking, awaited])
def ask(request: pytest.FixtureRequest) -> Ask:
    """One call with either client: `ask(handler, "search", "heat", k=3)`."""
    call: Ask = request.param
    return call


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each wait."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept
