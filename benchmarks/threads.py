"""Queries in Python by the default number of threads, one and two, on the idle machine and beside a busy process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import PositiveInt

from benchmarks.measuring import Benchmark, header, run

_COLUMNS = ("machine", "threads", "wall ms", "CPU ms", "wall ratio", "CPU ratio")
_THREADS = ("default", "1", "2")
_LOOP = """
import json, statistics, sys, time
import diffretriever as dr
index, threads, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if threads != "default":
    import torch
    torch.set_num_threads(int(threads))
opened = dr.Index(index)
queries = [f"how do I open file number {n} and read its lines?" for n in range(count)]
for query in queries[:5]:
    opened.search(query)
wall, cpu = [], []
for query in queries:
    began, used = time.perf_counter(), time.process_time()
    opened.search(query)
    wall.append(time.perf_counter() - began)
    cpu.append(time.process_time() - used)
print(json.dumps([1000 * statistics.median(wall), 1000 * statistics.median(cpu)]))
"""


class ThreadsBenchmark(Benchmark):
    """Time single queries by `Index.search` in processes of their own, one setting after the other.

    Ratios are to the better of one and two threads on the same machine state.
    """

    index: Path
    """Index to search, such as demo/indexes/diffretriever-minilm."""
    queries: PositiveInt = 60
    """Queries of each process."""
    busy: PositiveInt = 1
    """Processes that compute beside it."""


def main(config: ThreadsBenchmark) -> None:
    """Run every setting, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    rows = []
    for machine, busy in (("idle", 0), ("busy", config.busy)):
        with _busy(busy):
            times = {threads: _measured(config, threads) for threads in _THREADS}
        best = [min(times["1"][n], times["2"][n]) for n in range(2)]
        for threads, (wall, cpu) in times.items():
            rows.append((machine, threads, wall, cpu, wall / best[0], cpu / best[1]))
    config.report(about, format_table(rows, _COLUMNS), rows=rows)


def _measured(config: ThreadsBenchmark, threads: str) -> tuple[float, float]:
    command = [sys.executable, "-c", _LOOP, str(config.index), threads, str(config.queries)]
    # What a shell set for other benchmarks would answer for the library.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    wall, cpu = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return wall, cpu


@contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    run(ThreadsBenchmark, main)
