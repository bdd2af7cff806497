"""Requests at more than a server can answer, with and without bounds to lower them to: who is refused, at what cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run
from benchmarks.serve.loops import Arrival, Arrivals, Loop
from benchmarks.serve.session import serving
from diffretriever.collections import Qrels, Run, open_collection
from diffretriever.evaluation.formats.tables import format_table
from diffretriever.evaluation.measures import evaluate
from diffretriever.schemas.base import Model

_UNAVAILABLE = 503
_MEASURE = "nDCG@10"
_BELOW, _STEP, _STEPS = 0.7, 1.1, 40
"""The search for the load that refuses begins at this share of the closed loop's rate and goes on by this factor."""
_BEGINS = 0.01
"""Share of requests that are refused where a server begins to refuse."""
_LOADS = (1.0, 1.5)
"""Times the rate from which on the server refuses."""
_COLUMNS = (
    "server",
    "load",
    "requests/s",
    "refused %",
    "reduced %",
    "other errors",
    "p50 ms",
    "p95 ms",
    _MEASURE,
    "in full",
)


class LoadBenchmark(Benchmark):
    """Find the rate at which the server begins to refuse; then ask at 1 and 1.5 times that, with and without bounds."""

    index: str = "demo/indexes/diffretriever-minilm"
    """Index to serve, with the default score and K_q."""
    collection: str = "pydoc"
    """Collection whose test queries are asked, and whose judgements the answers are measured by."""
    queries: PositiveInt = 500
    """Distinct queries."""
    seconds: PositiveFloat = 20.0
    """Length of each part."""
    max_ongoing: PositiveInt = 64
    """Requests that the server works on at a time, the server's default."""
    least_query_slots: PositiveInt | None = 1
    """Bound of the second server; see the server's `load`."""
    least_candidates: PositiveInt | None = 100
    """Likewise."""
    threads: PositiveInt = 1
    """Threads of tensor work."""
    haproxy: bool = True
    """Use HAProxy in place of Ray's own proxy; it listens to the whole network."""


class Part(Model):
    """What became of the requests that came at a rate."""

    server: str
    load: float
    """Times the rate from which on the server refuses that has no bounds."""
    rate: float
    """Requests a second."""
    refused: float
    """Share of all requests, with status 503."""
    reduced: float
    """Share of the answers."""
    errors: int
    """With other statuses than 200 and 503."""
    p50_ms: float
    """Of the answers."""
    p95_ms: float
    ndcg: float
    """nDCG@10, mean over the answers."""
    full_ndcg: float
    """The same if all of these had been answered in full."""


class Judge:
    """Measures answers by the judgements of a collection's queries."""

    def __init__(self, qrels: Qrels, query_ids: list[str], full: list[list[str]]) -> None:
        """Judge queries with these ids; `full` are the best passages of each, found without load."""
        self._qrels, self._query_ids, self._full = qrels, query_ids, full

    def ndcg(self, answers: list[Arrival]) -> tuple[float, float]:
        """Return the mean nDCG@10 of the answers, and of full answers to the same requests."""
        given = [(each.query, each.hits) for each in answers]
        return self._mean(given), self._mean([(query, self._full[query]) for query, _ in given])

    def _mean(self, ranked: list[tuple[int, list[str]]]) -> float:
        # A query may be asked several times, and be answered otherwise each time.
        qrels = {str(place): self._qrels[self._query_ids[query]] for place, (query, _) in enumerate(ranked)}
        lists = [
            (str(place), [(passage, -float(rank)) for rank, passage in enumerate(hits)])
            for place, (_, hits) in enumerate(ranked)
        ]
        return evaluate(Run.of_lists(lists), qrels, [_MEASURE]).mean[_MEASURE]


def main(config: LoadBenchmark) -> None:
    """Find the rate, measure all parts, print a table and ratios, write JSON if asked to."""
    about = header()
    collection = open_collection(config.collection)
    asked = collection.queries("test")[: config.queries]
    texts = [query.text for query in asked]
    index = str(Path(config.index).absolute())
    full = in_child("benchmarks.serve.loops", "rankings", index=index, queries=texts)
    judge = Judge(collection.qrels("test"), [query.id for query in asked], full)
    bounds = {"least_query_slots": config.least_query_slots, "least_candidates": config.least_candidates}
    plain = {"index": index, "threads": config.threads, "max_ongoing": config.max_ongoing}
    with serving(plain, haproxy=config.haproxy) as url:
        rate = _refusing_rate(config, url, texts)
        parts = _parts(config, "as it is", url, texts, rate, judge)
    with serving({**plain, "load": bounds}, haproxy=config.haproxy) as url:
        parts += _parts(config, "with bounds", url, texts, rate, judge)
    with serving(plain, haproxy=config.haproxy) as url:
        parts += _parts(config, "as it is, again", url, texts, rate, judge)
    text = "\n".join(["", format_table([_row(part) for part in parts], _COLUMNS), "", *_ratios(parts)])
    config.report(about, text, refusing_rate=rate, parts=[part.model_dump() for part in parts])


def _refusing_rate(config: LoadBenchmark, url: str, texts: list[str]) -> float:
    """Return the first rate, of some that grow, at which one request in a hundred is refused.

    Raises:
        ValueError: fewer were, at all of them.
    """
    clients = max(1, config.max_ongoing // 2)
    loop = Loop.model_validate(_child("over_http", url=url, queries=texts, seconds=config.seconds, clients=clients))
    rates = [_BELOW * loop.rate * _STEP**step for step in range(_STEPS)]
    for rate in rates:
        found = _at_rate(url, texts, config.seconds, rate)
        refused = sum(each.status == _UNAVAILABLE for each in found)
        sys.stderr.write(f"{rate:.1f} requests/s: {refused} of {len(found)} refused\n")
        if refused >= _BEGINS * len(found):
            return rate
    raise ValueError(f"hardly any is refused at {rates[-1]:.0f} requests a second: give a smaller --max-ongoing")


def _parts(config: LoadBenchmark, server: str, url: str, texts: list[str], rate: float, judge: Judge) -> list[Part]:
    """Return what becomes of each load.

    Args:
        config: of the benchmark.
        server: what it is called.
        url: where it answers.
        texts: of the queries.
        rate: requests a second that are a load of 1.
        judge: of the answers.
    """
    parts = []
    _at_rate(url, texts, config.seconds / 4, rate)
    for load in _LOADS:
        found = _at_rate(url, texts, config.seconds, load * rate)
        parts.append(_part(server, load, load * rate, found, judge))
        sys.stderr.write(f"{parts[-1]}\n")
    return parts


def _part(server: str, load: float, rate: float, found: list[Arrival], judge: Judge) -> Part:
    answers = [each for each in found if each.status == 200]
    p50, p95 = np.quantile([each.ms for each in answers], [0.5, 0.95]).tolist()
    ndcg, full_ndcg = judge.ndcg(answers)
    return Part(
        server=server,
        load=load,
        rate=rate,
        refused=sum(each.status == _UNAVAILABLE for each in found) / len(found),
        reduced=sum(each.is_reduced for each in answers) / len(answers),
        errors=sum(each.status not in {200, _UNAVAILABLE} for each in found),
        p50_ms=p50,
        p95_ms=p95,
        ndcg=ndcg,
        full_ndcg=full_ndcg,
    )


def _at_rate(url: str, texts: list[str], seconds: float, rate: float) -> list[Arrival]:
    found = _child("at_rate", url=url, queries=texts, seconds=seconds, rate=rate)
    return Arrivals.model_validate(found).requests


def _child(name: str, **arguments: Any) -> Any:
    return in_child("benchmarks.serve.loops", name, **arguments)


def _row(part: Part) -> list[str]:
    shares = [f"{100 * part.refused:.1f}", f"{100 * part.reduced:.1f}"]
    times = [f"{part.p50_ms:.0f}", f"{part.p95_ms:.0f}"]
    gains = [f"{part.ndcg:.4f}", f"{part.full_ndcg:.4f}"]
    return [part.server, f"{part.load:g}", f"{part.rate:.1f}", *shares, str(part.errors), *times, *gains]


def _ratios(parts: list[Part]) -> list[str]:
    """Hold the server with bounds at 1.5 times the load against the other at 1 and at 1.5 times, both of its runs."""
    low, high = _LOADS
    bounded = next(part for part in parts if part.server == "with bounds" and part.load == high)
    others = {load: [part for part in parts if part.server != "with bounds" and part.load == load] for load in _LOADS}
    p95 = {load: float(np.mean([part.p95_ms for part in others[load]])) for load in _LOADS}
    refused = float(np.mean([part.refused for part in others[high]]))
    return [
        f"p95 with bounds at {high:g} over p95 without at {low:g}: {bounded.p95_ms / p95[low]:.2f}",
        f"p95 with bounds at {high:g} over p95 without at {high:g}: {bounded.p95_ms / p95[high]:.2f}",
        f"refused at {high:g}: {100 * bounded.refused:.1f} % with bounds, {100 * refused:.1f} % without",
        f"{_MEASURE} with bounds at {high:g}, less that of full answers: {bounded.ndcg - bounded.full_ndcg:+.4f}",
    ]


if __name__ == "__main__":
    run(LoadBenchmark, main)
