"""Requests of crashed replicas go to another replica once, or fail at once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.search.batch import SCHEMA
from diffretriever.serve.remote import RemoteBackend
from diffretriever.serve.replicas import Replicas
from diffretriever.serving.problems import UnavailableError
from diffretriever.serving.snapshots import SearchSpec, Version
from tests.serve.asking import LIMIT_S, run

DEAD = ActorDiedError()
NOBODY = DeploymentUnavailableError(DeploymentID("Encoder", "apart"))
FULL = BackPressureError(num_queued_requests=9, max_queued_requests=9)


class Deployment:
    """Stands for a handle: replicas that answer pings, and what becomes of each request in turn.

    A request raises an error, is answered after so many seconds (a float) or looks (an int), or else at once.
    """

    def __init__(self, answers: list[Any], pings: list[Any]) -> None:
        self.answers, self.pings = answers, pings
        self.looking_s = 0.0
        self.asked = self.looks = self.abandoned = 0
        self.encode = self

    async def remote(self, text: str) -> str:
        answer = self.answers[self.asked]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            try:
                await asyncio.sleep(answer)
            except asyncio.CancelledError:
                self.abandoned += 1
                raise
        while isinstance(answer, int) and self.looks < answer:
            await asyncio.sleep(0.01)
        return f"{text} {answer}"

    def broadcast(self, method: str, *arguments: int) -> Deployment:
        assert (method, arguments) in {("ping", ()), ("open", (7,))}
        return self

    async def results_async(self, *, return_exceptions: bool) -> list[Any]:
        assert return_exceptions
        self.looks += 1
        await asyncio.sleep(self.looking_s)
        if not self.pings:
            raise NOBODY
        return self.pings


def ask(deployment: Deployment) -> Any:
    return run(lambda: Replicas(deployment).call("encode", "text"))


def refused(deployment: Deployment) -> None:
    with pytest.raises(UnavailableError) as caught:
        ask(deployment)
    assert int(caught.value.headers["Retry-After"]) > 0


@pytest.mark.parametrize("error", [DEAD, ActorUnavailableError("lost", None)])
def test_a_request_of_a_crashed_replica_goes_to_another(error: Exception) -> None:
    assert ask(Deployment([error, "second"], [error, None])) == "text second"


def test_losing_the_last_replica_fails_at_once() -> None:
    for pings in ([], [DEAD]):
        deployment = Deployment([DEAD, LIMIT_S], pings)
        refused(deployment)
        assert deployment.asked == 1


def test_a_waiting_request_fails_if_no_replica_is_alive() -> None:
    deployment = Deployment([LIMIT_S], [])
    refused(deployment)
    assert deployment.abandoned == 1


def test_waiting_requests_share_a_ping_and_later_ones_fail_first() -> None:
    deployment = Deployment([LIMIT_S] * 9, [])
    deployment.looking_s = 1.0

    async def asking() -> list[Any]:
        replicas = Replicas(deployment)
        many = [replicas.call("encode", "text") for _ in range(8)]
        early = await asyncio.gather(*many, return_exceptions=True)
        assert (deployment.asked, deployment.looks) == (8, 1)
        late = await asyncio.gather(replicas.call("encode", "text"), return_exceptions=True)
        assert deployment.asked == 8
        deployment.pings, deployment.answers[8] = [None], "back"
        assert await replicas.call("encode", "text") == "text back"
        return [*early, *late]

    assert {type(each) for each in run(asking)} == {UnavailableError}


def test_a_waiting_request_fails_if_the_controller_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.serve.replicas._CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr("diffretriever.serve.replicas._STATUS_S", 0.05)
    is_back = threading.Event()
    looks = []

    def status() -> SimpleNamespace:
        looks.append(1)
        is_back.wait(LIMIT_S)
        return SimpleNamespace(applications={})

    async def asking() -> None:
        replicas = Replicas(Deployment([LIMIT_S], []), "search")
        try:
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await replicas.call("encode", "text")
        finally:
            is_back.set()

    monkeypatch.setattr("diffretriever.serve.replicas.serve.status", status)
    run(asking)
    assert len(looks) == 1


def test_a_replica_that_misses_a_ping_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.serve.replicas._CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr("diffretriever.serve.replicas._PING_S", 0.05)
    deployment = Deployment([0.2], [None])

    async def hangs(*, return_exceptions: bool) -> None:
        await asyncio.sleep(LIMIT_S)

    deployment.results_async = hangs  # type: ignore[method-assign,assignment]
    assert ask(deployment) == "text 0.2"


@pytest.mark.parametrize("answers", [[DEAD, DEAD], [DEAD, NOBODY], [NOBODY], [FULL]])
def test_a_request_that_no_replica_takes_is_rejected(answers: list[Exception]) -> None:
    refused(Deployment(answers, [None]))


class Parts(Deployment):
    """A shard: finds one passage, whose number it has, for every query."""

    def __init__(self, number: int, answers: list[Any], pings: list[Any]) -> None:
        super().__init__(answers, pings)
        self.number, self.search = number, self

    async def remote(self, queries: list[str], spec: SearchSpec) -> Any:  # type: ignore[override]
        await super().remote("")
        rows = [(query, f"p{self.number}", 1.0 - self.number) for query in range(len(queries))]
        query, ids, scores = zip(*rows, strict=True)
        return {"dense": pa.table([query, ids, scores], schema=SCHEMA)}


def config(shards: int, needed: int, timeout_s: float | None = None) -> ServeConfig:
    settings = {"shards": shards, "shards_needed": needed, "shard_timeout_s": timeout_s}
    return ServeConfig.model_validate({"index": "i", "layout": "apart", **settings})


def found(*shards: Any, needed: int, timeout_s: float | None = None) -> tuple[list[list[str]], tuple[int, ...]]:
    """Ask shards for two queries; a shard is what it answers, or an error, or seconds that it takes."""
    made: list[Any] = [Parts(number, [each, each], [None]) for number, each in enumerate(shards)]
    spec = SearchSpec(Version("", 1), lists=("dense",), depth=10, condition=None)

    async def asking() -> Any:
        backend = RemoteBackend(config(len(made), needed, timeout_s), Deployment([], [None]), made)
        return await asyncio.to_thread(backend.search, [(["one", "two"], spec)])  # type: ignore[list-item]

    ((hits, missing),) = run(asking)
    return [[passage for passage, _ in each] for each in hits["dense"]], missing


def test_results_lack_the_passages_of_lost_shards() -> None:
    assert found(None, None, None, needed=3) == ([["p0", "p1", "p2"]] * 2, ())
    assert found(None, None, None, needed=1) == ([["p0", "p1", "p2"]] * 2, ())
    assert found(None, DEAD, None, needed=2) == ([["p0", "p2"]] * 2, (1,))
    assert found(DEAD, None, FULL, needed=1) == ([["p1"]] * 2, (0, 2))
    assert found(None, TimeoutError(), None, needed=2) == ([["p0", "p2"]] * 2, (1,))


def test_a_shard_that_exceeds_its_timeout_is_skipped() -> None:
    with pytest.raises(UnavailableError, match="2 of 2 shards"):
        found(LIMIT_S, LIMIT_S, needed=1, timeout_s=0.05)


@pytest.mark.parametrize(
    ("needed", "pings", "is_ready"),
    [
        (2, [[None], [DEAD, None], [None]], True),
        (2, [[], [None], [None]], False),
        (2, [[None], [DEAD], [None]], False),
        (1, [[None], [], [None]], True),
        (1, [[None], [], []], False),
        (1, [[], [None], [None]], False),
    ],
)
def test_readiness_needs_an_encoder_and_enough_shards(needed: int, pings: list[list[Any]], is_ready: bool) -> None:
    async def check() -> None:
        encoder, *shards = (Deployment([], each) for each in pings)
        await RemoteBackend(config(2, needed), encoder, shards).check()

    with nullcontext() if is_ready else pytest.raises(UnavailableError):
        run(check)
