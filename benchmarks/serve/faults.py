"""Replicas killed under load: what clients see, and for how long."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.serve.session import kill_actor, serving

_VICTIMS = {
    "apart": {"an encoder": "Encoder#", "a shard": "Shard0#", "the controller": "SERVE_CONTROLLER_ACTOR"},
    "together": {"the one replica": "Ingress#"},
}
_UNAVAILABLE = 503
_CLOSE = 0.01
"""Scores of a query that shares a batch with others differ by the rounding of its vectors."""
_COLUMNS = (
    "killed",
    "requests",
    "refused (503)",
    "other errors",
    "wrong",
    "first answer s",
    "last refusal s",
    "longest wait s",
)


class FaultBenchmark(Benchmark):
    """Kill parts of both layouts while clients ask, and hold answers against a search without them."""

    index: str = "demo/indexes/diffretriever-minilm"
    """Index to serve, with the dense score and the retriever's own K_q."""
    collection: str = "pydoc"
    """Collection whose test queries are asked."""
    clients: PositiveInt = 8
    """Clients at a time, each asking again as soon as it has its answer."""
    seconds: PositiveFloat = 40.0
    """Length of each part; the kill comes after a quarter of it."""
    shards: PositiveInt = 2
    """Deployments that share the index."""
    queries: PositiveInt = 50
    """Distinct queries."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request; times are seconds after the kill."""

    asked: float
    answered: float
    status: int
    is_right: bool
    """Of a refusal: whether it is a problem that says when to come back."""


def main(config: FaultBenchmark) -> None:
    """Kill one after the other, print a table, write JSON if asked to."""
    from diffretriever.collections import open_collection
    from diffretriever.evaluation.formats.tables import format_table
    from diffretriever.search import open_searcher

    about = header()
    index = str(Path(config.index).absolute())
    queries = [query.text for query in open_collection(config.collection).queries("test")[: config.queries]]
    hits = open_searcher(index).search(queries, k=10, modes=["dense"])["dense"]
    expected = {query: [score for _, score in found] for query, found in zip(queries, hits, strict=True)}
    rows = {}
    for layout, victims in _VICTIMS.items():
        shards = config.shards if layout == "apart" else 1
        settings = {"index": index, "layout": layout, "shards": shards, "threads": 1, "max_ongoing": 128}
        with serving(settings, haproxy=False) as url:
            for killed, name in victims.items():
                rows[killed] = _row(asyncio.run(_part(url, expected, config, name)))
    table = format_table([[killed, *map(str, row.values())] for killed, row in rows.items()], _COLUMNS)
    config.report(about, f"\n{table}", results=rows)


async def _part(url: str, expected: dict[str, Any], config: FaultBenchmark, victim: str) -> list[Answer]:
    import aiohttp

    kill_at = time.perf_counter() + config.seconds / 4
    asked = itertools.cycle(expected.items())
    answers: list[Answer] = []

    async def one(session: aiohttp.ClientSession) -> None:
        while (start := time.perf_counter() - kill_at) < config.seconds * 3 / 4:
            query, best = next(asked)
            async with session.post(f"{url}/search", json={"query": query, "mode": "dense"}) as response:
                found = await response.json() if response.status == 200 else None
                right = response.content_type == "application/problem+json" and "retry-after" in response.headers
            if found is not None:
                right = _same([hit["score"] for hit in found["results"][0]["hits"]], best)
            answers.append(Answer(start, time.perf_counter() - kill_at, response.status, right))
            if found is None:
                # Sooner than the server asks for, so that its recovery is seen when it comes.
                await asyncio.sleep(0.1)

    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(one(session)) for _ in range(config.clients)]
        await asyncio.sleep(kill_at - time.perf_counter())
        await asyncio.to_thread(kill_actor, victim)
        await asyncio.gather(*tasks)
    return answers


def _same(scores: list[float], best: list[float]) -> bool:
    return len(scores) == len(best) and np.allclose(scores, best, atol=_CLOSE)


def _row(answers: list[Answer]) -> dict[str, int | float | None]:
    refused = [answer for answer in answers if answer.status == _UNAVAILABLE]
    after = [answer.answered for answer in answers if answer.asked > 0 and answer.status == 200]
    return {
        "requests": len(answers),
        "refused": len(refused),
        "errors": sum(answer.status not in {200, _UNAVAILABLE} for answer in answers),
        "wrong": sum(not answer.is_right for answer in answers),
        "first_answer_s": round(min(after), 2) if after else None,
        "last_refusal_s": round(max(answer.answered for answer in refused), 2) if refused else None,
        "longest_wait_s": round(max(answer.answered - answer.asked for answer in answers), 2),
    }


if __name__ == "__main__":
    run(FaultBenchmark, main)
