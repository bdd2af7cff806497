"""The steps from a search request to its answer, whoever encodes and searches in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diffretriever.encoders.finite import not_finite
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.preparer import Preparer
from diffretriever.encoders.representations import Representations
from diffretriever.scoring.topk import Hits
from diffretriever.search.batch import LISTS, ListName
from diffretriever.search.neural import FUSION_DEPTH, ranked
from diffretriever.serving.answers import Ranking, hits_of, ids_of
from diffretriever.serving.metrics import Metrics, Stage
from diffretriever.serving.planner import PlannedQuery, Planner
from diffretriever.serving.problems import InvalidError
from diffretriever.serving.view import View
from schemas.retriever_parts import Mode
from schemas.serve import AskedBudget, QueryResult, SearchRequest, SearchResponse, SearchTimings, Texts

_SHOWN = 60
Found = dict[ListName, Hits]
"""For each list, each query's best passages."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched for: the same for all queries of a request."""

    version: int
    lists: tuple[ListName, ...]
    depth: int
    """Passages kept of each list."""
    collection: str | None
    """The filter."""


class Clock:
    """Times the stages of a request, from its arrival."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.stages: dict[Stage, float] = {}

    def done(self, stage: Stage) -> None:
        """A stage has ended now."""
        now = time.perf_counter()
        self.stages[stage] = 1000 * (now - self._last)
        self._last = now

    def timings(self) -> SearchTimings:
        """Return all stages, in milliseconds."""
        total = round(1000 * (self._last - self._start), 3)
        return SearchTimings(total=total, **{stage: round(value, 3) for stage, value in self.stages.items()})


@dataclass(frozen=True, slots=True)
class Job:
    """A search request that has been checked, and the version that answers it."""

    request: SearchRequest
    view: View
    mode: Mode
    collection: str | None
    """The filter; None where all passages are of it."""
    clock: Clock = field(default_factory=Clock)

    @property
    def wanted(self) -> Wanted:
        """What has to be searched for."""
        depth = max(self.request.k, FUSION_DEPTH) if self.mode == "hybrid" else self.request.k
        return Wanted(self.view.version, LISTS[self.mode], depth, self.collection)


@dataclass(frozen=True, slots=True)
class Searched:
    """A request whose search is done."""

    job: Job
    planned: list[PlannedQuery]
    queries: Representations
    found: Found


class Answering:
    """The first and the last step. May be used by several threads.

    Attributes:
        planner: chooses budgets.
        metrics: is told of every answer.
    """

    def __init__(self, planner: Planner, preparer: Preparer, metrics: Metrics) -> None:
        self.planner, self.metrics = planner, metrics
        self._preparer = preparer
        # Two threads in one tokenizer raise an error.
        self._lock = threading.Lock()

    def plan(self, query: Texts, budget: AskedBudget) -> list[PlannedQuery]:
        """See `Planner.plan`."""
        with self._lock:
            planned = self.planner.plan(query, budget)
        for each in planned:
            self.metrics.budget(each.budget.slots)
        return planned

    def prepare_passages(self, titles: list[str], texts: list[str]) -> list[PreparedText]:
        """See `Preparer.prepare_passages`."""
        with self._lock:
            return self._preparer.prepare_passages(titles, texts)

    def finish(self, searched: Sequence[Searched]) -> list[SearchResponse]:
        """Rank, read the passages of all requests of a version together, explain if asked to."""
        rankings = [_rank(each.job.mode, each.found, each.job.request.k) for each in searched]
        wanted: dict[int, list[Ranking]] = {}
        for each, own in zip(searched, rankings, strict=True):
            wanted.setdefault(each.job.view.version, []).extend(own)
        views = {each.job.view.version: each.job.view for each in searched}
        texts = {version: views[version].index.passages(ids_of(own)) for version, own in wanted.items()}
        return [
            self._response(each, own, texts[each.job.view.version])
            for each, own in zip(searched, rankings, strict=True)
        ]

    def _response(
        self, searched: Searched, rankings: list[Ranking], texts: Mapping[str, dict[str, str]]
    ) -> SearchResponse:
        job = searched.job
        explained = searched.queries if job.request.explain else None
        hits = hits_of(job.view, rankings, texts, explained, self)
        job.clock.done("passages")
        timings = job.clock.timings()
        for stage, milliseconds in job.clock.stages.items():
            self.metrics.stage(stage, milliseconds)
        self.metrics.stage("total", timings.total)
        return SearchResponse(
            index=job.view.state(),
            mode=job.mode,
            results=[
                QueryResult(query=query.text, budget=query.budget, hits=own)
                for query, own in zip(searched.planned, hits, strict=True)
            ],
            timings_ms=timings,
        )

    def word(self, token: int) -> str:
        """Return a vocabulary entry as text."""
        return str(self._preparer.vocabulary.tokenizer.decode([token])).strip()


def refused(planned: Sequence[PlannedQuery], encoded: Representations) -> InvalidError | None:
    """Return the problem of a request with a query that is encoded as NaN or infinity; None where there is none."""
    wrong = not_finite(encoded).tolist()
    if not wrong:
        return None
    detail = f"query number {wrong[0]} ('{planned[wrong[0]].text[:_SHOWN]}') is encoded as NaN or infinity"
    return InvalidError(detail, "ask with other words, and tell whoever runs this server", "query")


def _rank(mode: Mode, found: Found, k: int) -> list[Ranking]:
    best = ranked(mode, found.get("dense", []), found.get("sparse", []), k)
    rankings = []
    for query, hits in enumerate(best):
        kept = {passage for passage, _ in hits}
        # A list may hold a thousand passages of which ten are shown.
        scores: dict[Mode, dict[str, float]] = {
            name: {passage: score for passage, score in lists[query] if passage in kept}
            for name, lists in found.items()
        }
        rankings.append(Ranking(mode, hits, scores))
    return rankings
