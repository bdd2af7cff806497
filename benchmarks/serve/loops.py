"""The loops of clients that the serve benchmarks measure, each run in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.measuring import serve_child
from diffretriever.schemas.base import Model

WARM_UP = 8
"""Requests that every loop makes before it measures."""


class Loop(Model):
    """A closed loop: so many clients, each asking again as soon as it has its answer."""

    clients: int
    seconds: float
    requests: int
    """Answered."""
    errors: int
    """Answered with another status than 200."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    encoding_p50_ms: float | None = None
    """In process: of encoding the query, which is part of the request."""

    @property
    def rate(self) -> float:
        """Requests answered in a second."""
        return self.requests / self.seconds


class Arrival(Model):
    """A request that was sent when its time had come, whatever had become of those before it."""

    query: int
    """Its place among the queries."""
    status: int
    ms: float
    """From the moment at which it was due."""
    hits: list[str]
    """Ids of the passages, best first; none where it was refused."""
    is_reduced: bool


class Arrivals(Model):
    """An open loop: requests come at a rate, by a Poisson process."""

    requests: list[Arrival]


def in_process(index: str, queries: list[str], seconds: float, threads: int) -> Loop:
    """Call the functions that a search job calls, one query at a time, of an index that an encoder made."""
    import torch

    from diffretriever.search import open_searcher

    torch.set_num_threads(threads)
    searcher = open_searcher(index)
    if searcher.encoder is None:
        raise ValueError(f"{index} was made without an encoder: there is none to serve")
    mode = searcher.default_mode
    encode, encoding = searcher.encoder.encode_queries, []

    def timed(*given: Any) -> Any:
        before = time.perf_counter()
        try:
            return encode(*given)
        finally:
            encoding.append(time.perf_counter() - before)

    def ask(query: str) -> None:
        hits = searcher.search([query], k=10, modes=[mode])[mode]
        searcher.index.shown(hits.rows())

    for query in queries[:WARM_UP]:
        ask(query)
    times: list[float] = []
    start = time.perf_counter()
    with mock.patch.object(searcher.encoder, "encode_queries", timed):
        for query in itertools.cycle(queries):
            before = time.perf_counter()
            if before - start > seconds:
                break
            ask(query)
            times.append(time.perf_counter() - before)
    loop = _loop(1, time.perf_counter() - start, times, 0)
    return loop.model_copy(update={"encoding_p50_ms": 1000 * float(np.median(encoding))})


def over_http(url: str, queries: list[str], seconds: float, clients: int) -> Loop:
    """Ask the application."""
    return asyncio.run(_clients(url, queries, seconds, clients))


async def _clients(url: str, queries: list[str], seconds: float, clients: int) -> Loop:
    import aiohttp

    asked = itertools.cycle(queries)
    times: list[float] = []
    errors = 0

    async def one(session: Any, end: float) -> None:
        nonlocal errors
        is_over = False
        while not is_over:
            before = time.perf_counter()
            async with session.post(f"{url}/search", json={"query": next(asked)}) as response:
                await response.read()
            after = time.perf_counter()
            if response.status == 200:
                times.append(after - before)
            else:
                errors += 1
            is_over = after >= end

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session, time.perf_counter() + 1) for _ in range(clients)))
        times.clear()
        errors = 0
        start = time.perf_counter()
        await asyncio.gather(*(one(session, start + seconds) for _ in range(clients)))
        return _loop(clients, time.perf_counter() - start, times, errors)


def at_rate(url: str, queries: list[str], seconds: float, rate: float) -> Arrivals:
    """Ask the application at a rate, in requests a second; equal calls ask for the same at the same times."""
    gaps = np.random.default_rng(0).exponential(1 / rate, size=max(1, round(seconds * rate)))
    return Arrivals(requests=asyncio.run(_arrivals(url, queries, np.cumsum(gaps).tolist())))


async def _arrivals(url: str, queries: list[str], due: list[float]) -> list[Arrival]:
    import aiohttp

    start = time.perf_counter()

    async def one(session: Any, number: int) -> tuple[int, float, bytes]:
        async with session.post(f"{url}/search", json={"query": queries[number % len(queries)]}) as response:
            body = await response.read()
        return response.status, 1000 * (time.perf_counter() - start - due[number]), body

    # With a limit on connections, requests would wait here and not at the server.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = []
        for number, moment in enumerate(due):
            await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
            tasks.append(asyncio.create_task(one(session, number)))
        answers = await asyncio.gather(*tasks)
    # Reading the answers meanwhile would take the cores from the server.
    return [_arrival(number % len(queries), *answer) for number, answer in enumerate(answers)]


def _arrival(query: int, status: int, ms: float, body: bytes) -> Arrival:
    if status != 200:
        return Arrival(query=query, status=status, ms=ms, hits=[], is_reduced=False)
    answer = json.loads(body)
    hits = [hit["id"] for hit in answer["results"][0]["hits"]]
    return Arrival(query=query, status=status, ms=ms, hits=hits, is_reduced=answer["reduced"] is not None)


def rankings(index: str, queries: list[str]) -> list[list[str]]:
    """Return the ids of the best ten passages of each query, as a server without load answers."""
    from diffretriever.search import open_searcher

    searcher = open_searcher(index)
    mode = searcher.default_mode
    return [[name for name, _ in hits] for hits in searcher.search(queries, k=10, modes=[mode])[mode]]


def _loop(clients: int, seconds: float, times: list[float], errors: int) -> Loop:
    p50, p95, p99 = (1000 * np.quantile(times, [0.5, 0.95, 0.99])).tolist()
    return Loop(
        clients=clients, seconds=seconds, requests=len(times), errors=errors, p50_ms=p50, p95_ms=p95, p99_ms=p99
    )


if __name__ == "__main__":
    serve_child({"in_process": in_process, "over_http": over_http, "at_rate": at_rate, "rankings": rankings})
