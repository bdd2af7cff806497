"""The application under load, against the functions that it calls: latency, throughput, errors, memory."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run
from benchmarks.serve.loops import Loop
from benchmarks.serve.session import replica_mb, serving

_LATENCY_GOAL, _RATE_GOAL, _ENCODING_GOAL = 1.5, 3.0, 1.25
_MANY = 32
_COLUMNS = ("", "clients", "requests/s", "p50 ms", "p95 ms", "p99 ms", "errors", "replica MB")


class ServeBenchmark(Benchmark):
    """Measure the application at 1 to 64 clients, each asking again as soon as it has its answer."""

    index: str = "demo/indexes/diffretriever-minilm"
    """Index to serve, with the default score and K_q."""
    collection: str = "pydoc"
    """Collection whose test queries are asked."""
    clients: tuple[PositiveInt, ...] = (1, 4, 16, 32, 64)
    """Clients at a time; 1 and 32 are held against the goals."""
    seconds: PositiveFloat = 10.0
    """Length of each loop."""
    soak_seconds: float = Field(default=0.0, ge=0)
    """At the end, so long with the most clients, a tenth at a time, to see errors and memory; 300 for the full form."""
    threads: PositiveInt = 1
    """Threads of tensor work, in the application and in process."""
    queries: PositiveInt = 200
    """Distinct queries."""
    haproxy: bool = True
    """Use HAProxy in place of Ray's own proxy; it listens to the whole network."""


def main(config: ServeBenchmark) -> None:
    """Run the loops, print a table and the goals, write JSON if asked to."""
    from diffretriever.collections import open_collection
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    queries = [query.text for query in open_collection(config.collection).queries("test")[: config.queries]]
    index = str(Path(config.index).absolute())
    loops = _measure(config, index, queries)
    goals = _goals(loops)
    text = "\n".join(["", format_table([_row(*each) for each in loops], _COLUMNS), "", *goals])
    results = [{"name": name, "replica_mb": memory, **loop.model_dump()} for name, loop, memory in loops]
    config.report(about, text, results=results, goals=goals)


Measured = tuple[str, Loop, float]


def _measure(config: ServeBenchmark, index: str, queries: list[str]) -> list[Measured]:
    """In process before and after the application, so that a change of the machine's mood shows."""
    alone: dict[str, Any] = {"index": index, "queries": queries, "threads": config.threads}
    loops = [("in process, before", _child("in_process", **alone, seconds=config.seconds), 0.0)]
    settings = {"index": index, "threads": config.threads, "max_ongoing": 128}
    with serving({**settings, "batch_tokens": 1}, haproxy=config.haproxy) as url:
        loop = _child("over_http", url=url, queries=queries, seconds=config.seconds, clients=_MANY)
        loops.append(("application, one at a time", loop, replica_mb()))
    with serving(settings, haproxy=config.haproxy) as url:
        asked: dict[str, Any] = {"url": url, "queries": queries}
        for clients in config.clients:
            loop = _child("over_http", **asked, seconds=config.seconds, clients=clients)
            loops.append(("application", loop, replica_mb()))
        for _ in range(10 if config.soak_seconds else 0):
            loop = _child("over_http", **asked, seconds=config.soak_seconds / 10, clients=max(config.clients))
            loops.append(("soak", loop, replica_mb()))
    loops.append(("in process, after", _child("in_process", **alone, seconds=config.seconds), 0.0))
    return loops


def _child(name: str, **arguments: Any) -> Loop:
    loop = Loop.model_validate(in_child("benchmarks.serve.loops", name, **arguments))
    sys.stderr.write(f"{name}, {loop.clients} clients: {loop.rate:.1f} requests/s, p50 {loop.p50_ms:.1f} ms\n")
    return loop


def _row(name: str, loop: Loop, memory: float) -> list[str]:
    times = [f"{value:.1f}" for value in (loop.rate, loop.p50_ms, loop.p95_ms, loop.p99_ms)]
    return [name, str(loop.clients), *times, str(loop.errors), f"{memory:.0f}" if memory else ""]


def _goals(loops: list[Measured]) -> list[str]:
    """Hold the median in process against its encoding, that of one client against it, and the rate of 32."""
    alone = [loop for name, loop, _ in loops if name.startswith("in process")]
    alone_ms = mean(loop.p50_ms for loop in alone)
    encoding_ms = mean(loop.encoding_p50_ms for loop in alone if loop.encoding_p50_ms is not None)
    served = {loop.clients: loop for name, loop, _ in loops if name == "application"}
    ratio = alone_ms / encoding_ms
    lines = [f"p50 in process over encoding the query: {_verdict(ratio, _ENCODING_GOAL, met=ratio <= _ENCODING_GOAL)}"]
    if 1 in served:
        ratio = served[1].p50_ms / alone_ms
        lines.append(f"p50 of 1 client over in process: {_verdict(ratio, _LATENCY_GOAL, met=ratio <= _LATENCY_GOAL)}")
    if _MANY in served:
        one_by_one = next(loop for name, loop, _ in loops if name.endswith("one at a time"))
        ratio = served[_MANY].rate / one_by_one.rate
        verdict = _verdict(ratio, _RATE_GOAL, met=ratio >= _RATE_GOAL)
        lines.append(f"rate of {_MANY} clients over the same without batches: {verdict}")
    return lines


def _verdict(ratio: float, goal: float, *, met: bool) -> str:
    return f"{ratio:.2f} (goal {goal:g}: {'met' if met else 'MISSED'})"


if __name__ == "__main__":
    run(ServeBenchmark, main)
