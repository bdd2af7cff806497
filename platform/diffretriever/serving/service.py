"""Requests to answers: every answer from one version of the index, the same as a job's for the same query."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from diffretriever.consent import trust_code
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import Preparer
from diffretriever.index.filters import FilterError, collection_filter, condition_of
from diffretriever.index.manifest import check_same, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.presets import with_places
from diffretriever.representations import Representations
from diffretriever.schemas.base import shortened, suggest
from diffretriever.schemas.mode import Mode, unweighted
from diffretriever.schemas.retriever import NeuralRetriever, RetrieverConfig
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import (
    MOST_READ_PASSAGES,
    DeleteResponse,
    EncodeRequest,
    EncodeResponse,
    Filter,
    IndexResponse,
    IngestRequest,
    IngestResponse,
    LimitsInForce,
    SearchRequest,
    SearchResponse,
)
from diffretriever.schemas.serve_config import ServeConfig, ServeLimits
from diffretriever.scoring.fusion import FUSION_DEPTH, lists_for
from diffretriever.serving.answering import Answering, CheckedRequest, Planner, encoded_query
from diffretriever.serving.backend import Backend
from diffretriever.serving.ingest import Writer
from diffretriever.serving.load import Caps, Load, ladder
from diffretriever.serving.metrics import Metrics, NoMetrics
from diffretriever.serving.problems import InvalidError, RequestError, UnavailableError
from diffretriever.serving.snapshots import Version, View

_LOST = "the index is not where it was: it is being replaced"


class Service:
    """What one replica answers with. To be used from one event loop.

    Attributes:
        config: of the application.
        view: the version that requests are answered from now.
        load: how far requests are lowered now.
        is_other_retriever: whether the index is now one that another encoder made: only a new service can serve it.
    """

    def __init__(self, config: ServeConfig, index: PassageIndex, answering: Answering, backend: Backend) -> None:
        """Serve an index.

        Args:
            config: of the application.
            index: the version to begin with.
            answering: the steps around encoding and searching.
            backend: what encodes and searches.
        """
        self.config = config
        self.view = View(index)
        self._answering, self._backend = answering, backend
        self.load = Load(config.max_ongoing, ladder(config.load, answering.planner.own_budget))
        self.is_other_retriever = False
        self._is_lost = False
        self._writer = Writer(config, index.manifest, self._encode_passages)

    async def search(self, request: SearchRequest) -> SearchResponse:
        """Answer `POST /search`."""
        view, caps = self.view, self.load.caps
        try:
            return await self._backend.answer(await self._checked(request, view, caps))
        except RequestError:
            raise
        except Exception:
            await self._refuse_lost(view)
            raise

    async def _checked(self, request: SearchRequest, view: View, caps: Caps) -> CheckedRequest:
        limits = self.config.limits
        if request.k > limits.max_k:
            raise InvalidError(f"{request.k} passages are too many", f"ask for at most {limits.max_k}", "k")
        _check_passages(request, limits)
        _check_words(request, view.index.manifest.retriever)
        mode = self._mode(request.mode)
        condition = await self._condition(view, request.filter)
        bm25 = await view.bm25(condition) if "bm25" in lists_for([mode]) else None
        caps = replace(caps, candidates=await self._candidates(view, mode, request.k, caps.candidates))
        return CheckedRequest(request, view, mode, condition, bm25, caps)

    async def _candidates(self, view: View, mode: Mode, k: int, most: int | None) -> int | None:
        """Return how many candidates a request is left of those that it would have; None where it has no more."""
        if most is None:
            return None
        lists = lists_for([mode])
        named = await self._named(view) if "dense" in lists else 0
        full = max(named, FUSION_DEPTH if len(lists) > 1 else 0)
        return max(k, most) if max(k, most) < full else None

    async def _named(self, view: View) -> int:
        """Return how many passages candidate indexes name for a query."""
        if view.candidates is None:
            parts = await self._backend.parts(view.version)
            view.candidates = max(part.candidates or 0 for part in parts)
        return view.candidates

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Answer `POST /encode`."""
        planned = await asyncio.to_thread(self._answering.plan, request.query, request.budget)
        encoded = await self._backend.encode([query.prepared for query in planned])
        word = self._answering.word
        return EncodeResponse(
            fingerprint=self.view.index.manifest.fingerprint,
            results=[encoded_query(query, encoded, number, word) for number, query in enumerate(planned)],
        )

    async def describe(self) -> IndexResponse:
        """Answer `GET /index`."""
        view, manifest, planner = self.view, self.view.index.manifest, self._answering.planner
        retriever = manifest.retriever
        parts = await self._backend.parts(view.version)
        return IndexResponse(
            index=view.state(),
            title=manifest.title,
            method=retriever.method,
            modes=list(retriever.modes),
            default_mode=retriever.ranked_by,
            further_modes=[mode for mode in retriever.offered_modes if mode not in retriever.modes],
            query_budget=planner.own_budget,
            passage_budget=retriever.max_vectors("passage"),
            readable=retriever.is_readable,
            adaptive=planner.selector.name if planner.selector else None,
            collections=await asyncio.to_thread(lambda: view.collections),
            metadata=manifest.metadata,
            found_by={name: sorted({part.found_by[name] for part in parts}) for name in parts[0].found_by},
            parts=parts,
            limits=LimitsInForce(**planner.limits.model_dump(include=set(LimitsInForce.model_fields))),
        )

    async def check(self) -> None:
        """Answer `GET /readyz`: return if searches can be answered."""
        if self._is_lost:
            raise UnavailableError(_LOST)
        await self._backend.check()

    async def ingest(self, request: IngestRequest) -> IngestResponse:
        """Answer `POST /passages`; the new version is the one to be searched when this returns."""
        # A client that goes away must not take the lock from under a commit.
        done = await asyncio.shield(self._writer.add(request.passages))
        await self.refresh()
        return done

    async def delete(self, passage_id: str) -> DeleteResponse:
        """Answer `DELETE /passages/{id}`, likewise."""
        done = await asyncio.shield(self._writer.delete(passage_id))
        await self.refresh()
        return done

    async def refresh(self) -> None:
        """Move to the latest version of the index, once it is ready everywhere.

        Raises:
            ValueError: the index is gone, or was made anew by another retriever.
        """
        started = time.monotonic()
        try:
            latest = await asyncio.to_thread(PassageIndex.open, self.config.index)
            self.is_other_retriever = latest.manifest.fingerprint != self.view.index.manifest.fingerprint
            check_same(latest.manifest, self.view.index.manifest, self.config.index)
        except ValueError:
            self._is_lost = True
            raise
        if Version.of(latest).follows(self.view.version):
            view = await asyncio.to_thread(View, latest)
            await self._backend.open(view.version)
            if "bm25" in lists_for([latest.manifest.retriever.ranked_by]):
                # The words of all texts are counted while the version before answers. What goes wrong a search tells.
                with suppress(Exception):
                    await view.bm25(None)
            if view.version.follows(self.view.version):
                self.view = view
        self._is_lost = False
        self.view.checked = max(self.view.checked, started)

    async def _refuse_lost(self, view: View) -> None:
        """Raise `UnavailableError` if a version cannot be read because its index is there no more."""
        # Whatever goes wrong in looking, the request has failed for a reason that is told in any case.
        with suppress(Exception):
            await self.refresh()
        if self._is_lost or self.view.version.created != view.version.created:
            raise UnavailableError(_LOST)

    def _mode(self, asked: Mode | None) -> Mode:
        retriever = self.view.index.manifest.retriever
        if asked is None:
            return retriever.ranked_by
        if unweighted(asked) not in retriever.offered_modes:
            fix = suggest(asked, retriever.offered_modes).strip()
            raise InvalidError(f"this index has no {shortened(asked)} scores", fix, "mode")
        return asked

    async def _condition(self, view: View, wanted: str | Filter | None) -> str | None:
        """Return what passages must meet; None where all do."""
        if wanted is None:
            return None
        metadata = view.index.manifest.metadata
        if isinstance(wanted, str):
            try:
                return condition_of(wanted, metadata)
            except FilterError as error:
                fix = "write conditions such as year >= 2020 AND lang = 'en' on the columns that `GET /index` names"
                raise InvalidError(str(error).removeprefix("filter: ").removesuffix("."), fix, "filter") from None
        known = await asyncio.to_thread(lambda: view.collections)
        if wanted.collection not in known:
            fix = suggest(wanted.collection, known).strip()
            raise InvalidError(f"there is no collection '{shortened(wanted.collection)}'", fix, "filter.collection")
        return None if len(known) == 1 else condition_of(collection_filter(wanted.collection), metadata)

    async def _encode_passages(self, titles: list[str], texts: list[str]) -> Representations:
        return await self._backend.encode(await asyncio.to_thread(self._answering.prepare_passages, titles, texts))


def _most_passages(request: SearchRequest) -> int:
    """Return how many passages an answer can have, all queries together."""
    return request.k * (1 if isinstance(request.query, str) else len(request.query))


def _check_passages(request: SearchRequest, limits: ServeLimits) -> None:
    """Raise `InvalidError` for an answer of too many passages, all queries together."""
    most, done = (limits.max_explained, " to explain") if request.explain else (limits.max_hits, "")
    passages = _most_passages(request)
    if passages > most:
        fits = most * request.k // passages
        fix = f"ask for a k of at most {fits}" if fits else f"send at most {most} queries"
        raise InvalidError(f"{passages} passages are too many{done}", f"{fix} in a request", "k")


def _check_words(request: SearchRequest, retriever: RetrieverConfig) -> None:
    """Raise `InvalidError` where slots cannot be read as words of the whole vocabulary, or too many would be."""
    if not request.words:
        return
    if not request.explain:
        raise InvalidError("words are part of explanations", "set explain to true, or leave words out", "words")
    if not retriever.is_readable:
        detail = f"vectors of the {retriever.method} method cannot be read as words"
        raise InvalidError(detail, "leave words out", "words")
    passages = _most_passages(request)
    if passages > MOST_READ_PASSAGES:
        fix = f"ask for at most {MOST_READ_PASSAGES} passages for all queries together, or leave words out"
        raise InvalidError(f"{passages} passages are too many to read the slots of", fix, "words")


def check_config(config: ServeConfig) -> None:
    """Open what replicas open, but for the weights and the files beside the table, and read a row of it.

    Raises:
        ValueError: they could not; the message says why.
    """
    index = open_index(config)
    answering = open_answering(config, index, open_preparer(config, index), NoMetrics())
    ladder(config.load, answering.planner.own_budget)
    next(index.batches(["id"], 1), None)


def open_index(config: ServeConfig) -> PassageIndex:
    """Open the latest version of the index to serve.

    Raises:
        ValueError: no index there, or one without an encoder.
    """
    index = PassageIndex.open(config.index)
    retriever = index.manifest.retriever
    if not retriever.has_weights:
        raise ValueError(
            f"{config.index} is a {retriever.method} index, which has no encoder to serve: search it with "
            "jobs/search.py"
        )
    return index


def open_encoder(config: ServeConfig, index: PassageIndex, device: str) -> Encoder:
    """Load the encoder that made the index onto `device`.

    Raises:
        ValueError: the backbone found is not the one that made it; the message names what differs. Or `recorded`
            asks for what cannot be recorded.
    """
    trust_code(config.trust_code)
    encoder = load_encoder(_retriever(config, index), device)
    check_same(index.manifest, manifest_of(encoder), index.uri)
    recorded = config.recorded
    if recorded is None:
        recorded = encoder.facts.device.type == "cuda" and encoder.can_record
    if recorded:
        encoder.record_passes()
    return encoder


def open_preparer(config: ServeConfig, index: PassageIndex) -> Preparer:
    """Load the tokenizer side of that encoder alone."""
    trust_code(config.trust_code)
    return load_preparer(_retriever(config, index))


def open_answering(config: ServeConfig, index: PassageIndex, preparer: Preparer, metrics: Metrics) -> Answering:
    """Return the steps around encoding and searching.

    Args:
        config: of the application; names the selector and the limits.
        index: what is served.
        preparer: of the encoder that made it.
        metrics: where answers are counted.

    Raises:
        ValueError: the selector cannot be used for this index.
    """
    return Answering(Planner(index, preparer, config.selector, config.limits), preparer, metrics)


def search_options(config: ServeConfig) -> SearchOptions:
    """Return what the searches of this application are opened with: a job's defaults."""
    return SearchOptions(index=config.index, memory_mb=config.memory_mb)


def _retriever(config: ServeConfig, index: PassageIndex) -> NeuralRetriever:
    return with_places(index.manifest.retriever, config.backbone, config.adapter)
