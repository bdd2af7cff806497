"""Searches beside connections whose bodies come a byte at a time: how long a search takes, and what becomes of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.serve.session import serving

_COLUMNS = ("slow connections", "answered", "refused (503)", "other", "p50 ms", "p95 ms", "longest ms", "slow ones got")
_HEAD = "POST /search HTTP/1.1\r\nhost: slow\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
_PAUSE_S = 1.0
"""Between two bytes of a slow body, and before a connection that was closed is opened again."""
_PATIENCE_S = 120.0


class SlowBenchmark(Benchmark):
    """Ask one search after the other while connections send the bodies of their requests a byte a second."""

    index: str = "demo/indexes/diffretriever-minilm"
    """Index to serve, with the default score and K_q."""
    collection: str = "pydoc"
    """Collection whose test queries are asked."""
    slow: tuple[NonNegativeInt, ...] = (0, 130, 500)
    """Slow connections at a time, each opened again when it is closed."""
    seconds: PositiveFloat = 30.0
    """Length of each part, from the moment at which all slow connections are asked for."""
    queries: PositiveInt = 50
    """Distinct queries."""
    haproxy: bool = False
    """Use HAProxy in place of Ray's own proxy; it listens to the whole network."""


def main(config: SlowBenchmark) -> None:
    """Measure each number of slow connections, print a table, write JSON if asked to."""
    from diffretriever.collections import open_collection
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    queries = [query.text for query in open_collection(config.collection).queries("test")[: config.queries]]
    rows: list[list[str]] = []
    with serving({"index": str(Path(config.index).absolute()), "threads": 1}, haproxy=config.haproxy) as url:
        asyncio.run(_part(url, queries, 0, 2.0))
        rows.extend(asyncio.run(_part(url, queries, slow, config.seconds)) for slow in config.slow)
    results = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
    config.report(about, f"\n{format_table(rows, _COLUMNS)}", results=results)


async def _part(url: str, queries: list[str], slow: int, seconds: float) -> list[str]:
    """Return a row of the table."""
    import aiohttp

    got: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    times: list[float] = []
    dripping = [asyncio.create_task(_drip(url, got)) for _ in range(slow)]
    asked = itertools.cycle(queries)
    end = time.perf_counter() + seconds
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as session:
        while (before := time.perf_counter()) < end:
            async with session.post(f"{url}/search", json={"query": next(asked)}) as response:
                await response.read()
            statuses[response.status] += 1
            times.append(1000 * (time.perf_counter() - before))
            if response.status != 200:
                await asyncio.sleep(0.1)
    for task in dripping:
        task.cancel()
    await asyncio.gather(*dripping, return_exceptions=True)
    p50, p95, longest = np.quantile(times, [0.5, 0.95, 1.0]).tolist()
    other = statuses.total() - statuses[200] - statuses[503]
    seen = ", ".join(f"{status}: {count}" for status, count in sorted(got.items()))
    counts = [str(count) for count in (slow, statuses[200], statuses[503], other)]
    return [*counts, *(f"{value:.1f}" for value in (p50, p95, longest)), seen]


async def _drip(url: str, got: Counter[str]) -> None:
    """Send bodies a byte at a time, for ever, and count how they were answered."""
    host, _, port = url.removeprefix("http://").partition(":")
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                got[await _one_body(reader, writer)] += 1
            finally:
                writer.close()
        await asyncio.sleep(_PAUSE_S)


async def _one_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Send one body until the server answers; return the status."""
    writer.write(_HEAD.encode())
    answer = asyncio.create_task(reader.readline())
    try:
        while not (await asyncio.wait({answer}, timeout=_PAUSE_S))[0]:
            writer.write(b" ")
            await writer.drain()
    finally:
        answer.cancel()
    line = answer.result().split()
    return line[1].decode() if len(line) > 1 else "nothing"


if __name__ == "__main__":
    run(SlowBenchmark, main)
