"""Handles requests. Every response reads one version of the index and equals the result of a search job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from diffretriever.collections.records import RefusedError, checked_query
from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.index.filters import FilterError, condition_of
from diffretriever.index.manifest import check_same
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.base import shortened, suggest
from diffretriever.schemas.mode import Mode, unweighted
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.serve import (
    MOST_READ_PASSAGES,
    BudgetUsed,
    DeleteResponse,
    EncodeRequest,
    EncodeResponse,
    IndexResponse,
    IngestRequest,
    IngestResponse,
    Reduced,
    RequestedBudget,
    SearchRequest,
    SearchResponse,
    SearchTimings,
)
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.search.selecting import BudgetChooser
from diffretriever.serving import ingest
from diffretriever.serving.backend import Backend, Batcher
from diffretriever.serving.load import Caps, Load, load_levels
from diffretriever.serving.measure import Measure, unmeasured
from diffretriever.serving.problems import InvalidError, RequestError, UnavailableError
from diffretriever.serving.searches import (
    Search,
    encoded_query,
    explanations,
    passages_of,
    query_results,
    with_bm25,
)
from diffretriever.serving.snapshots import Version, View
from diffretriever.vectors.fusion import FUSION_DEPTH, lists_for, ranked
from diffretriever.vectors.representations import Representations, not_finite

Changed = TypeVar("Changed", IngestResponse, DeleteResponse)
_MISSING = "the index is missing, because it is being replaced"
_CHARACTERS_PER_TOKEN = 4
_PROMPT_TOKENS = 32
"""Approximate number of tokens of a query besides its text."""


class Service:
    """Handles the requests of one replica. Use it from one event loop.

    Attributes:
        config: config of the application.
        limits: limits of a request; `max_budget` is at most the encoder's maximum number of slots.
        view: version that new requests search.
        load: current load level.
        is_other_retriever: whether an index of another retriever has replaced this one, which needs a new service.
    """

    def __init__(
        self,
        config: ServeConfig,
        index: PassageIndex,
        preparer: Preparer,
        backend: Backend,
        measure: Measure = unmeasured,
    ) -> None:
        """Serve `index` and its later versions.

        Raises:
            ValueError: the selector cannot be used for the index, or a bound of `config.load` has no effect.
        """
        self.config = config
        most = min(config.limits.max_budget, preparer.max_slots or config.limits.max_budget)
        self.limits = config.limits.model_copy(update={"max_budget": most})
        self.view = View(index)
        self.is_other_retriever = False
        self._is_missing = False
        self._retriever = index.manifest.retriever
        self._budget, self._chooser, levels = open_budgets(config, index, preparer)
        self.load = Load(config.max_ongoing, levels)
        self._preparer, self._backend, self._measure = preparer, backend, measure
        self._batcher = Batcher("answer", self._answer, _tokens, backend.batch_tokens, measure, backend.threads)
        # The tokenizer is not thread-safe.
        self._tokenizer = threading.Lock()
        self._writing = asyncio.Lock()

    async def search(self, request: SearchRequest) -> SearchResponse:
        """Handle `POST /search`."""
        view = self.view
        try:
            return await self._batcher(await self._checked(request, view, self.load.caps))
        except RequestError:
            raise
        except Exception:
            # If refreshing fails too, raise the request's own error.
            with suppress(Exception):
                await self.refresh()
            if self._is_missing or self.view.version.created != view.version.created:
                raise UnavailableError(_MISSING) from None
            raise

    async def _checked(self, request: SearchRequest, view: View, caps: Caps) -> Search:
        texts = self._checked_texts(request.query, request.budget)
        if request.k > self.limits.max_k:
            raise InvalidError(f"{request.k} passages are too many", f"request at most {self.limits.max_k}", "k")
        passages = request.k * len(texts)
        most = self.limits.max_explained if request.explain else self.limits.max_hits
        if passages > most:
            to_explain = " to explain" if request.explain else ""
            fix = f"request at most {most}: k times the number of queries"
            raise InvalidError(f"{passages} passages are too many{to_explain}", fix, "k")
        if request.words:
            self._check_words(request, passages)
        mode = request.mode or self._retriever.ranked_by
        if unweighted(mode) not in self._retriever.offered_modes:
            fix = suggest(mode, self._retriever.offered_modes).strip()
            raise InvalidError(f"this index has no {shortened(mode)} scores", fix, "mode")
        condition = None if request.filter is None else _condition(view, request.filter)
        if "bm25" in lists_for([mode]):
            await asyncio.to_thread(view.bm25)
        if caps.candidates is not None:
            caps = replace(caps, candidates=await self._candidates(view, mode, max(request.k, caps.candidates)))
        return Search(request, texts, view, mode, condition, caps)

    def _answer(self, searches: list[Search]) -> list[SearchResponse]:
        """Handle requests together. Blocks; the batcher calls it in a thread."""
        for search in searches:
            most = search.caps.query_slots
            search.budgets, search.prepared = self._prepared(search.texts, search.request.budget, most)
        times = [time.perf_counter()]

        encoded = self._backend.encode([search.prepared for search in searches])
        for search, queries in zip(searches, encoded, strict=True):
            _check_finite(search.texts, queries)
            search.queries = queries
        times.append(time.perf_counter())

        responses = self._backend.search([(search.queries, search.spec) for search in searches])
        for search, (result_lists, missing_shards) in zip(searches, responses, strict=True):
            search.lists, search.missing_shards = with_bm25(search, result_lists), missing_shards
        times.append(time.perf_counter())

        for search in searches:
            search.ranking = ranked(search.mode, search.lists, search.request.k, search.fusion_depth)
        passages = passages_of(searches)
        return [self._response(search, passages[search.view.version], times) for search in searches]

    def _response(self, search: Search, passages: dict[int, dict[str, Any]], times: list[float]) -> SearchResponse:
        explained = None
        if search.request.explain:
            explained = explanations(search, passages, self._preparer, self._tokenizer, self._backend.read)
        results = query_results(search, passages, explained)
        ends = [search.began, *times, time.perf_counter()]
        stages = dict(zip(("choose", "encode", "search", "passages"), np.diff(ends) * 1000, strict=True))
        timings = {name: round(float(value), 3) for name, value in [*stages.items(), ("total", sum(stages.values()))]}
        reduced = _reduced(search)
        for name, value in timings.items():
            self._measure("stage_ms", value, name)
        for budget in search.budgets:
            if budget.slots is not None:
                self._measure("query_slots", budget.slots)
        if reduced is not None:
            self._measure("reduced_requests", 1, str(search.caps.level))
        if search.missing_shards:
            self._measure("partial_answers", 1)
        return SearchResponse(
            index=search.view.state(),
            mode=search.mode,
            results=results,
            timings_ms=SearchTimings(**timings),
            missing_shards=search.missing_shards,
            reduced=reduced,
        )

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Handle `POST /encode`."""
        texts = self._checked_texts(request.query, request.budget)
        return await asyncio.to_thread(self._encode, texts, request.budget)

    def _encode(self, texts: list[str], budget: RequestedBudget) -> EncodeResponse:
        budgets, prepared = self._prepared(texts, budget)
        (encoded,) = self._backend.encode([prepared])
        word = self._preparer.vocabulary.word
        return EncodeResponse(
            fingerprint=self.view.index.manifest.fingerprint,
            results=[
                encoded_query(text, used, encoded.take(np.array([number])), word)
                for number, (text, used) in enumerate(zip(texts, budgets, strict=True))
            ],
        )

    async def describe(self) -> IndexResponse:
        """Handle `GET /index`."""
        view, retriever = self.view, self._retriever
        return IndexResponse(
            index=view.state(),
            title=view.index.manifest.title,
            method=retriever.method,
            modes=list(retriever.modes),
            default_mode=retriever.ranked_by,
            further_modes=[mode for mode in retriever.offered_modes if mode not in retriever.modes],
            query_budget=self._budget,
            passage_budget=retriever.max_vectors("passage"),
            readable=retriever.is_readable,
            adaptive=self._chooser.selector.name if self._chooser else None,
            collections=await asyncio.to_thread(lambda: view.collections),
            metadata=view.index.manifest.metadata,
            parts=await self._backend.parts(view.version),
            limits=self.limits,
        )

    async def check(self) -> None:
        """Handle `GET /readyz`; raise UnavailableError if the service cannot search."""
        if self._is_missing:
            raise UnavailableError(_MISSING)
        await self._backend.check()

    async def ingest(self, request: IngestRequest) -> IngestResponse:
        """Handle `POST /passages`; later requests search the new version."""
        ingest.check(request.passages, self.limits)
        return await asyncio.shield(self._change(ingest.add, request.passages, self._encode_passages))

    async def delete(self, passage_id: str) -> DeleteResponse:
        """Handle `DELETE /passages/{id}`; later requests search the new version."""
        return await asyncio.shield(self._change(ingest.delete, passage_id))

    async def _change(self, change: Callable[..., Changed], *arguments: Any) -> Changed:
        """Change the index in a thread, one request at a time.

        Shield this: the lock must last until the commit ends.
        """
        async with self._writing:
            response = await asyncio.to_thread(change, self.config.index, self.view.index.manifest, *arguments)
        await self.refresh()
        return response

    def _encode_passages(self, titles: list[str], texts: list[str]) -> Representations:
        try:
            with self._tokenizer:
                prepared = self._preparer.prepare_passages(titles, texts)
        except ValueError as error:
            detail = f"a passage cannot be encoded: {error}"
            raise InvalidError(detail, "correct the passage, or leave it out", "passages") from None
        return self._backend.encode([prepared])[0]

    async def refresh(self) -> None:
        """Open the latest version of the index on all parts, then search it.

        Raises:
            ValueError: the index is missing, or another retriever made it.
        """
        started = time.monotonic()
        try:
            latest = await asyncio.to_thread(PassageIndex.open, self.config.index)
            self.is_other_retriever = latest.manifest.fingerprint != self.view.index.manifest.fingerprint
            check_same(latest.manifest, self.view.index.manifest, self.config.index)
        except ValueError:
            self._is_missing = True
            raise
        if Version.of(latest).follows(self.view.version):
            view = await asyncio.to_thread(View, latest)
            await self._backend.open(view.version)
            if "bm25" in lists_for([self._retriever.ranked_by]):
                # Compute BM25 statistics while the previous version serves. The next search reports an error.
                with suppress(Exception):
                    await asyncio.to_thread(view.bm25)
            if view.version.follows(self.view.version):
                self.view = view
        self._is_missing = False
        self.view.checked = max(self.view.checked, started)

    def _checked_texts(self, query: str | list[str], budget: RequestedBudget) -> list[str]:
        texts = [query] if isinstance(query, str) else query
        limits = self.limits
        if not 1 <= len(texts) <= limits.max_queries:
            fix = f"send between 1 and {limits.max_queries} queries in a request"
            raise InvalidError(f"there are {len(texts)} queries", fix, "query")
        for number, text in enumerate(texts):
            name = "query" if isinstance(query, str) else f"query.{number}"
            if len(text) > limits.max_query_chars:
                fix = f"shorten it to {limits.max_query_chars} characters"
                raise InvalidError(f"the query has {len(text)} characters", fix, name)
            try:
                checked_query("query", text)
            except RefusedError as refused:
                raise InvalidError(str(refused), "send a text that is not blank, in valid Unicode", name) from None
        method = self._retriever.method
        if budget is not None and self._budget is None:
            raise InvalidError(f"the {method} method has no query budget", "leave budget out", "budget")
        if budget == "adaptive" and self._chooser is None:
            detail = f"the {method} method has no slots, so budget cannot be adaptive"
            raise InvalidError(detail, "set a number, or leave budget out", "budget")
        if isinstance(budget, int) and budget > limits.max_budget:
            raise InvalidError(f"{budget} slots are too many", f"request at most {limits.max_budget}", "budget")
        return texts

    def _check_words(self, request: SearchRequest, passages: int) -> None:
        if not request.explain:
            raise InvalidError("words are part of explanations", "set explain to true, or leave words out", "words")
        if not self._retriever.is_readable:
            detail = f"vectors of the {self._retriever.method} method do not predict tokens"
            raise InvalidError(detail, "leave words out", "words")
        if passages > MOST_READ_PASSAGES:
            fix = f"request at most {MOST_READ_PASSAGES} passages for all queries together, or leave words out"
            raise InvalidError(f"{passages} passages are too many to read the slots of", fix, "words")

    async def _candidates(self, view: View, mode: Mode, most: int) -> int | None:
        """Return the cap on candidates; None if it has no effect."""
        lists = lists_for([mode])
        if "dense" in lists and view.candidates is None:
            parts = await self._backend.parts(view.version)
            view.candidates = max(part.candidates or 0 for part in parts)
        retrieved = (view.candidates or 0) if "dense" in lists else 0
        return most if most < max(retrieved, FUSION_DEPTH if len(lists) > 1 else 0) else None

    def _prepared(
        self, texts: list[str], budget: RequestedBudget, most: int | None = None
    ) -> tuple[list[BudgetUsed], list[PreparedText]]:
        """Choose each query's K_q, at most `most` unless explicit, and prepare the queries."""
        with self._tokenizer:
            if budget == "adaptive":
                assert self._chooser is not None, "the request has been validated"
                rule, allowed = self._chooser.selector.name, self._chooser.selector.budgets
                budgets = [
                    BudgetUsed(
                        slots=choice.budget, reason="adaptive", rule=rule, allowed=allowed, features=choice.features
                    )
                    for choice in self._chooser.choose(texts)
                ]
            elif budget is None:
                budgets = [BudgetUsed(slots=self._budget, reason="retriever")] * len(texts)
            else:
                budgets = [BudgetUsed(slots=budget, reason="request")] * len(texts)
            if most is not None and not isinstance(budget, int):
                budgets = [_lowered(used, most) for used in budgets]
            slots = [used.slots or self._preparer.default_slots("query") for used in budgets]
            return budgets, self._preparer.prepare(texts, "query", slots)


def open_budgets(
    config: ServeConfig, index: PassageIndex, preparer: Preparer
) -> tuple[int | None, BudgetChooser | None, tuple[Caps, ...]]:
    """Return the retriever's K_q, the selector of adaptive budgets, and the caps of each load level.

    Raises:
        ValueError: the selector does not fit this index, or a bound of `config.load` has no effect.
    """
    retriever = index.manifest.retriever
    budget = retriever.max_vectors("query") if retriever.has_query_budget else None
    chooser = None
    if has_slots(retriever):
        chooser = BudgetChooser(config.selector or retriever.default_selector, index, preparer)
    return budget, chooser, load_levels(config.load, budget)


def _condition(view: View, text: str) -> str:
    """Return a filter as a condition in Lance's SQL."""
    try:
        return condition_of(text, view.index.manifest.metadata)
    except FilterError as error:
        fix = "write conditions such as year >= 2020 AND lang = 'en' on columns from `GET /index`"
        raise InvalidError(str(error).removeprefix("filter: ").removesuffix("."), fix, "filter") from None


def _tokens(search: Search) -> int:
    """Estimate the tokens to encode; `Encoder.encode` counts exactly."""
    return sum(len(text) // _CHARACTERS_PER_TOKEN + _PROMPT_TOKENS for text in search.texts)


def _lowered(budget: BudgetUsed, most: int) -> BudgetUsed:
    if budget.slots is None or budget.slots <= most:
        return budget
    return budget.model_copy(update={"slots": most, "reason": "load"})


def _reduced(search: Search) -> Reduced | None:
    slots = search.caps.query_slots if any(budget.reason == "load" for budget in search.budgets) else None
    if slots is None and search.caps.candidates is None:
        return None
    return Reduced(query_slots=slots, candidates=search.caps.candidates)


def _check_finite(texts: Sequence[str], encoded: Representations) -> None:
    wrong = not_finite(encoded).tolist()
    if wrong:
        detail = f"query number {wrong[0]} ('{shortened(texts[wrong[0]])}') is encoded as NaN or infinity"
        raise InvalidError(detail, "send other words, and report it to the operator of this server", "query")
