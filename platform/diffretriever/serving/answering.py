"""From the texts of a request to prepared queries: checks, each query's K_q and why, token ids with slots."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from diffretriever.budgets.selectors import Selector
from diffretriever.collections.validation import RefusedError, checked_query
from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.encoders.representations import Representations, not_finite
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.fusion import ListName, depth_for, lists_for, ranked
from diffretriever.scoring.topk import Hit, Hits
from diffretriever.search.selecting import BudgetChooser
from diffretriever.serving.explain import NameWord, explain, slot_words, terms
from diffretriever.serving.metrics import Metrics, Stage
from diffretriever.serving.problems import InvalidError
from diffretriever.serving.snapshots import View
from schemas.retriever import Bm25Retriever, MaskedRetriever, Mode, PromptedRetriever
from schemas.serve import (
    AskedBudget,
    BudgetUsed,
    EncodedQuery,
    EncodedSlot,
    QueryResult,
    SearchHit,
    SearchRequest,
    SearchResponse,
    SearchTimings,
    Texts,
)
from schemas.serve_config import ServeLimits


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query ready to be encoded."""

    text: str
    budget: BudgetUsed
    prepared: PreparedText


class Planner:
    """Prepares queries for one retriever. A tokenizer is no thread's friend: use it from one thread at a time.

    Attributes:
        own_budget: the retriever's K_q; None where queries have no budget.
        selector: what chooses `adaptive` budgets; None where there is nothing to choose.
    """

    def __init__(self, index: PassageIndex, preparer: Preparer, selector: str, limits: ServeLimits) -> None:
        """`selector` names one as `open_selector` takes it.

        Raises:
            ValueError: the selector cannot be used for this index; see `BudgetChooser`.
        """
        retriever = index.manifest.retriever
        assert not isinstance(retriever, Bm25Retriever), "such an index is refused at the start"
        most = min(limits.max_budget, preparer.most_slots or limits.max_budget)
        self.limits = limits.model_copy(update={"max_budget": most})
        self._preparer = preparer
        self._method = retriever.method
        self.own_budget = retriever.max_vectors("query") if isinstance(retriever, PromptedRetriever) else None
        masked = isinstance(retriever, MaskedRetriever)
        self._chooser = BudgetChooser(selector, index, preparer) if masked else None
        self.selector: Selector | None = self._chooser.selector if self._chooser else None

    def plan(self, query: Texts, budget: AskedBudget) -> list[PlannedQuery]:
        """Check the texts of a request, choose each one's K_q, and prepare them.

        Raises:
            InvalidError: a text or the budget cannot be used, or is over a limit.
        """
        texts = self._checked(query)
        budgets = self._budgets(texts, budget)
        slots = [each.slots or self._preparer.default_slots("query") for each in budgets]
        prepared = self._preparer.prepare(texts, "query", slots)
        return [PlannedQuery(*each) for each in zip(texts, budgets, prepared, strict=True)]

    def _checked(self, query: Texts) -> list[str]:
        texts = [query] if isinstance(query, str) else query
        limits = self.limits
        if not 1 <= len(texts) <= limits.max_queries:
            fix = f"send between 1 and {limits.max_queries} queries in a request"
            raise InvalidError(f"there are {len(texts)} queries", fix, "query")
        for number, text in enumerate(texts):
            field = "query" if isinstance(query, str) else f"query.{number}"
            if len(text) > limits.max_query_chars:
                fix = f"shorten it to {limits.max_query_chars} characters"
                raise InvalidError(f"the query has {len(text)} characters", fix, field)
            try:
                checked_query("query", text)
            except RefusedError as refused:
                raise InvalidError(str(refused), "send a text that has words in it, as valid Unicode", field) from None
        return texts

    def _budgets(self, texts: Sequence[str], budget: AskedBudget) -> list[BudgetUsed]:
        if budget is None:
            return [BudgetUsed(slots=self.own_budget, reason="retriever")] * len(texts)
        if self.own_budget is None:
            raise InvalidError(f"the {self._method} method has no query budget", "leave budget out", "budget")
        if budget == "adaptive":
            return self._chosen(texts)
        if budget > self.limits.max_budget:
            raise InvalidError(f"{budget} slots are too many", f"ask for at most {self.limits.max_budget}", "budget")
        return [BudgetUsed(slots=budget, reason="asked")] * len(texts)

    def _chosen(self, texts: Sequence[str]) -> list[BudgetUsed]:
        if self._chooser is None:
            detail = f"the {self._method} method has no slots to choose the number of"
            raise InvalidError(detail, "give a number, or leave budget out", "budget")
        rule, allowed = self._chooser.selector.name, self._chooser.selector.budgets
        return [
            BudgetUsed(slots=choice.budget, reason="adaptive", rule=rule, allowed=allowed, features=choice.features)
            for choice in self._chooser.choose(texts)
        ]


class Words(Protocol):
    """Knows the vocabulary."""

    def word(self, token: int) -> str:
        """Return a vocabulary entry as text."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best passages of one query."""

    mode: Mode
    hits: list[Hit]
    """Best first."""
    scores: dict[Mode, dict[str, float]]
    """Score by passage in each list that the ranking was made of."""

    def scores_of(self, passage: str, score: float) -> dict[Mode, float | None]:
        """Return every score known of a passage, that of the ranking first."""
        return {self.mode: score, **{name: known.get(passage) for name, known in self.scores.items()}}


def ids_of(rankings: Sequence[Ranking]) -> list[str]:
    """Return the passages of rankings, each once."""
    return list(dict.fromkeys(passage for ranking in rankings for passage, _ in ranking.hits))


def hits_of(
    view: View,
    rankings: Sequence[Ranking],
    texts: Mapping[str, dict[str, str]],
    queries: Representations | None,
    words: Words,
) -> list[list[SearchHit]]:
    """Put rankings and passages together; with `queries`, explain them.

    Args:
        view: the version that was searched.
        rankings: one for each query.
        texts: title, text and collection of at least their passages, by id.
        queries: their representations, if explanations are wanted.
        words: of the encoder.
    """
    stored = {} if queries is None else view.representations(ids_of(rankings))
    answers: list[list[SearchHit]] = []
    for number, ranking in enumerate(rankings):
        query = None if queries is None else queries.take(np.array([number]))
        answers.append(
            [
                SearchHit(
                    rank=rank,
                    id=passage,
                    score=score,
                    scores=ranking.scores_of(passage, score),
                    explanation=None if query is None else explain(query, stored[passage], words.word),
                    **texts[passage],
                )
                for rank, (passage, score) in enumerate(ranking.hits, start=1)
            ]
        )
    return answers


def encoded_query(text: str, budget: BudgetUsed, encoded: Representations, number: int, name: NameWord) -> EncodedQuery:
    """Return query `number` of `encoded` as it is sent."""
    own = encoded.take(np.array([number]))
    slots = [
        EncodedSlot(words=words, vector=vector.tolist())
        for words, vector in zip(slot_words(own, name), own.vectors_MH.astype(np.float64), strict=True)
    ]
    return EncodedQuery(query=text, budget=budget, slots=slots, terms=terms(own, name))


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
        modes = [self.mode]
        depth = depth_for(modes, self.request.k)
        return Wanted(self.view.version, lists_for(modes), depth, self.collection)


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
    best = ranked(mode, found, k)
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
