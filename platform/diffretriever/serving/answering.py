"""From a search request to its answer, whoever encodes and searches in between.

First every query gets its K_q and becomes token ids with slots (`Planner`). After the search, `Answering.finish` fuses
each query's lists, and puts passages, scores and explanations together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from diffretriever.budgets.selectors import Selector
from diffretriever.collections.records import RefusedError, checked_query
from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations, not_finite
from diffretriever.schemas.base import shortened
from diffretriever.schemas.mode import EncodedList, ListName, Mode
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.serve import (
    AskedBudget,
    BudgetUsed,
    EncodedQuery,
    EncodedSlot,
    Explanation,
    QueryResult,
    Reading,
    Reduced,
    SearchHit,
    SearchRequest,
    SearchResponse,
    SearchTimings,
    Texts,
)
from diffretriever.schemas.serve_config import ServeLimits
from diffretriever.scoring.fusion import FUSION_DEPTH, depth_for, encoded_lists_for, ranked
from diffretriever.scoring.hits import Hits
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.explain import NameWord, explain_each, parts_of_each, slot_words, terms
from diffretriever.search.selecting import BudgetChooser
from diffretriever.serving.load import ALL, Caps
from diffretriever.serving.metrics import Metrics, Stage
from diffretriever.serving.problems import InvalidError
from diffretriever.serving.snapshots import Version, View

Found = Mapping[ListName, Hits]
"""For each list, each query's best passages."""
Read = Callable[[np.ndarray, int], list[Reading]]
"""What vectors [M, H] say in so many words of the whole vocabulary: `Encoder.read`, wherever the encoder is."""


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """What is searched, and how deep: the same for all queries of a request."""

    version: Version
    lists: tuple[EncodedList, ...]
    depth: int
    """Passages kept of each list."""
    condition: str | None
    """The filter, as `index.filters` reads it."""
    candidates: int | None = None
    """The most that a candidate index names for a query; None: as many as it was calibrated to."""


class Clock:
    """Times the stages of a request, from its arrival."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.stages: dict[Stage, float] = {}

    def done(self, stage: Stage) -> None:
        """End a stage now."""
        now = time.perf_counter()
        self.stages[stage] = 1000 * (now - self._last)
        self._last = now

    def timings(self) -> SearchTimings:
        """Return all stages, in milliseconds."""
        total = round(1000 * (self._last - self._start), 3)
        return SearchTimings(total=total, **{stage: round(value, 3) for stage, value in self.stages.items()})


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A search request that has been checked, and the version that answers it."""

    asked: SearchRequest
    view: View
    mode: Mode
    condition: str | None
    """The filter, as `index.filters` reads it; None where it admits all passages."""
    bm25: Bm25Search | None = None
    """What finds passages by the texts of the queries; None where the mode does not take it."""
    caps: Caps = ALL
    """What it is given at most; `candidates` is None where lowering them would change nothing."""
    clock: Clock = field(default_factory=Clock)

    @property
    def spec(self) -> SearchSpec:
        """What has to be searched for by encoded queries."""
        modes = [self.mode]
        depth = depth_for(modes, self.asked.k, self.fusion_depth)
        names = encoded_lists_for(modes)
        return SearchSpec(self.view.version, names, depth, self.condition, self.caps.candidates)

    @property
    def fusion_depth(self) -> int:
        """Passages of each list that take part in a sum."""
        return min(FUSION_DEPTH, self.caps.candidates or FUSION_DEPTH)


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query ready to be encoded."""

    text: str
    budget: BudgetUsed
    prepared: PreparedText


@dataclass(frozen=True, slots=True)
class Searched:
    """A request whose search is done."""

    request: CheckedRequest
    planned: list[PlannedQuery]
    queries: Representations
    found: Found


class Planner:
    """Checks the queries for one retriever, chooses their budgets, and prepares them.

    Its tokenizer raises an error when two threads use it at the same time: use a planner from one thread at a time.

    Attributes:
        limits: of a request; `max_budget` is no more than the encoder can take.
        own_budget: the retriever's K_q; None where queries have no budget.
        selector: what chooses `adaptive` budgets; None where there is nothing to choose.
    """

    def __init__(self, index: PassageIndex, preparer: Preparer, selector: str | None, limits: ServeLimits) -> None:
        """Open the selector.

        Args:
            index: what is served.
            preparer: of the encoder that made it.
            selector: names one as `open_selector` takes it; None: the retriever's own.
            limits: of a request.

        Raises:
            ValueError: the selector cannot be used for this index; see `BudgetChooser`.
        """
        retriever = index.manifest.retriever
        most = min(limits.max_budget, preparer.most_slots or limits.max_budget)
        self.limits = limits.model_copy(update={"max_budget": most})
        self._preparer = preparer
        self._method = retriever.method
        self.own_budget = retriever.max_vectors("query") if retriever.has_query_budget else None
        self._chooser = None
        if has_slots(retriever):
            self._chooser = BudgetChooser(selector or retriever.default_selector, index, preparer)
        self.selector: Selector | None = self._chooser.selector if self._chooser else None

    def plan(self, query: Texts, budget: AskedBudget, most: int | None = None) -> list[PlannedQuery]:
        """Check the texts of a request, choose each one's K_q, and prepare them.

        Args:
            query: the texts.
            budget: as it was asked for; a number is kept.
            most: K_q that is not exceeded otherwise; None: any number.

        Raises:
            InvalidError: a text or the budget cannot be used, or is over a limit.
        """
        texts = self._checked(query)
        budgets = [_lowered(each, most) for each in self._budgets(texts, budget)]
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


class Answering:
    """The first and the last step of an answer. Safe to use from several threads.

    Attributes:
        planner: what chooses budgets.
        metrics: where every answer is counted.
    """

    def __init__(self, planner: Planner, preparer: Preparer, metrics: Metrics) -> None:
        self.planner, self.metrics = planner, metrics
        self._preparer = preparer
        # Two threads in one tokenizer raise an error.
        self._lock = threading.Lock()

    def plan(self, query: Texts, budget: AskedBudget, most: int | None = None) -> list[PlannedQuery]:
        """See `Planner.plan`."""
        with self._lock:
            planned = self.planner.plan(query, budget, most)
        for each in planned:
            self.metrics.budget(each.budget.slots)
        return planned

    def prepare_passages(self, titles: list[str], texts: list[str]) -> list[PreparedText]:
        """See `Preparer.prepare_passages`."""
        with self._lock:
            return self._preparer.prepare_passages(titles, texts)

    def finish(self, searched: Sequence[Searched], read: Read) -> list[SearchResponse]:
        """Rank, read the passages of all requests of a version together, explain if asked to.

        Args:
            searched: requests.
            read: reads vectors as words, where explanations are to say such.
        """
        rankings = [_rank(each) for each in searched]
        shown: dict[Version, list[np.ndarray]] = {}
        for each, own in zip(searched, rankings, strict=True):
            shown.setdefault(each.request.view.version, []).append(own.best.rows())
        views = {each.request.view.version: each.request.view for each in searched}
        texts = {version: views[version].texts(np.unique(np.concatenate(own))) for version, own in shown.items()}
        return [
            self._response(each, own, texts[each.request.view.version], read)
            for each, own in zip(searched, rankings, strict=True)
        ]

    def _response(
        self, searched: Searched, ranking: Ranking, texts: Mapping[int, dict[str, Any]], read: Read
    ) -> SearchResponse:
        request = searched.request
        hits = list(self._hits(searched, ranking, texts, read))
        request.clock.done("passages")
        timings = request.clock.timings()
        for stage, milliseconds in request.clock.stages.items():
            self.metrics.stage(stage, milliseconds)
        self.metrics.stage("total", timings.total)
        reduced = _reduced(request.caps, searched.planned)
        if reduced is not None:
            self.metrics.reduced(request.caps.level)
        return SearchResponse(
            index=request.view.state(),
            mode=request.mode,
            results=[
                QueryResult(query=query.text, budget=query.budget, hits=own)
                for query, own in zip(searched.planned, hits, strict=True)
            ],
            timings_ms=timings,
            reduced=reduced,
        )

    def _hits(
        self, searched: Searched, ranking: Ranking, texts: Mapping[int, dict[str, Any]], read: Read
    ) -> Iterator[list[SearchHit]]:
        """Yield each query's hits, explained if asked for; `texts` are the passages' fields by row."""
        best, mode = ranking.best, searched.request.mode
        rows, names = best.rows().tolist(), best.names()
        explains = searched.request.asked.explain
        explanations = self._explanations(searched, best, texts, read) if explains else [None] * len(rows)
        for start, end in pairwise(best.offsets.tolist()):
            hits = []
            for place in range(start, end):
                score = float(best.scores_F[place])
                hits.append(
                    SearchHit(
                        rank=place - start + 1,
                        id=names[place],
                        score=score,
                        scores={mode: score, **{name: known[place] for name, known in ranking.scores.items()}},
                        explanation=explanations[place],
                        **texts[rows[place]],
                    )
                )
            yield hits

    def _explanations(
        self, searched: Searched, best: Hits, texts: Mapping[int, dict[str, Any]], read: Read
    ) -> list[Explanation | None]:
        """Explain every hit of all queries of a request."""
        words = searched.request.asked.words
        reads = (lambda vectors_MH: read(vectors_MH, words)) if words else None
        rows = best.rows()
        stored = searched.request.view.representations(np.unique(rows))
        found: list[Explanation | None] = []
        for number, (start, end) in enumerate(pairwise(best.offsets.tolist())):
            if start < end:
                query = searched.queries.take(np.array([number]))
                own = rows[start:end].tolist()
                passages = Representations.concatenate([stored[row] for row in own])
                with self._lock:
                    shown = [texts[row] for row in own]
                    parts = parts_of_each(self._preparer, query, passages, searched.planned[number].text, shown)
                found += explain_each(query, passages, self.word, reads, parts)
        return found

    def word(self, token: int) -> str:
        """Return a vocabulary entry as text."""
        return self._preparer.vocabulary.word(token)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best passages of the queries of a request."""

    best: Hits
    scores: dict[ListName, list[float | None]]
    """For each list that they were ranked by, the score of every hit there; None for one that is not in the list."""


def _lowered(budget: BudgetUsed, most: int | None) -> BudgetUsed:
    if most is None or budget.slots is None or budget.reason == "asked" or budget.slots <= most:
        return budget
    return budget.model_copy(update={"slots": most, "reason": "load"})


def _reduced(caps: Caps, planned: Sequence[PlannedQuery]) -> Reduced | None:
    """Return what was lowered for a request; None where nothing was."""
    slots = caps.query_slots if any(query.budget.reason == "load" for query in planned) else None
    if slots is None and caps.candidates is None:
        return None
    return Reduced(query_slots=slots, candidates=caps.candidates)


def _rank(searched: Searched) -> Ranking:
    request = searched.request
    best = ranked(request.mode, searched.found, request.asked.k, request.fusion_depth)
    return Ranking(best, {name: _scores_in(hits, best) for name, hits in searched.found.items()})


def _scores_in(found: Hits, best: Hits) -> list[float | None]:
    """Return the score in the list `found` of every hit of the same queries' `best`."""
    width = len(found.passages)
    wanted_F = best.queries() * width + best.numbers_F
    scores: list[float | None] = [None] * len(wanted_F)
    if not scores:
        return scores
    keys_F = found.queries() * width + found.numbers_F
    # Of the two, the one that is put in order is the short one.
    order = np.argsort(wanted_F)
    places_F = order[np.minimum(np.searchsorted(wanted_F, keys_F, sorter=order), len(order) - 1)]
    for hit in np.flatnonzero(wanted_F[places_F] == keys_F).tolist():
        scores[places_F[hit]] = float(found.scores_F[hit])
    return scores


def with_bm25(request: CheckedRequest, planned: Sequence[PlannedQuery], found: Found) -> Found:
    """Return what was found for a request, and what BM25 finds if its mode takes that."""
    if request.bm25 is None:
        return found
    hits = request.bm25.search([query.text for query in planned], request.spec.depth)
    order = request.view.index.order
    return {**{name: order.renumbered(own) for name, own in found.items()}, "bm25": hits}


def encoded_query(query: PlannedQuery, encoded: Representations, number: int, name: NameWord) -> EncodedQuery:
    """Return a query's representations as `POST /encode` answers with them.

    Args:
        query: as it was planned.
        encoded: all queries of the request.
        number: of this one among them.
        name: what a vocabulary entry is called.
    """
    own = encoded.take(np.array([number]))
    slots = [
        EncodedSlot(words=words, vector=vector.tolist())
        for words, vector in zip(slot_words(own, name), own.vectors_MH.astype(np.float64), strict=True)
    ]
    return EncodedQuery(query=query.text, budget=query.budget, slots=slots, terms=terms(own, name))


def not_finite_problem(planned: Sequence[PlannedQuery], encoded: Representations) -> InvalidError | None:
    """Return the problem of a request with a query that is encoded as NaN or infinity; None where there is none."""
    wrong = not_finite(encoded).tolist()
    if not wrong:
        return None
    detail = f"query number {wrong[0]} ('{shortened(planned[wrong[0]].text)}') is encoded as NaN or infinity"
    return InvalidError(detail, "ask with other words, and tell whoever runs this server", "query")
