"""The client for programs on an event loop: the same calls as `SearchClient`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

import httpx2

from diffretriever.client import calls
from diffretriever.client.calls import Answer, Call
from diffretriever.client.connection import DEFAULT_URL, connection
from diffretriever.client.retries import Retries
from diffretriever.client.settling import Wait, settle
from schemas.retriever_parts import Mode
from schemas.serve import (
    AskedBudget,
    DeleteResponse,
    EncodeResponse,
    IndexResponse,
    IngestResponse,
    PassageIn,
    SearchResponse,
    Texts,
)


class AsyncSearchClient:
    """A connection to a search application, for one event loop; close it, or use it in an `async with` block.

    Every call raises `ProblemError` where the service refuses, `AnswerError` where what answers is no such service,
    `UnreachableError` where nothing answers, and `ValueError` for arguments that no service would take. Requests that
    were turned away or never arrived are sent again, as `retries` says.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        retries: Retries | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            url: address of the application, such as `http://localhost:8000`.
            api_key: what the service wants to see, if it was given a key.
            timeout_s: seconds that a connection may stand still, for each try.
            retries: how often and how late to try again.
            transport: what carries requests instead of the network, for tests.

        Raises:
            ValueError: an argument that cannot work, named.
        """
        self._http = httpx2.AsyncClient(**connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    async def search(
        self,
        query: Texts,
        *,
        k: int = 10,
        mode: Mode | None = None,
        budget: AskedBudget = None,
        collection: str | None = None,
        explain: bool = False,
    ) -> SearchResponse:
        """Rank passages for one query or several; see `schemas.serve.SearchRequest` for what the arguments mean."""
        call = calls.search(query, k=k, mode=mode, budget=budget, collection=collection, explain=explain)
        return await self._ask(call)

    async def encode(self, query: Texts, *, budget: AskedBudget = None) -> EncodeResponse:
        """Return the vectors and terms of one query or several."""
        return await self._ask(calls.encode(query, budget=budget))

    async def index(self) -> IndexResponse:
        """Return what is served: the index's state, the retriever, what may be asked."""
        return await self._ask(calls.index())

    async def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """Add passages, or put them in place of those with their ids: all of them in one step, or none."""
        return await self._ask(calls.add(passages))

    async def delete_passage(self, passage_id: str) -> DeleteResponse:
        """Delete one passage; one that is not there is a `ProblemError` of status 404."""
        return await self._ask(calls.delete(passage_id))

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[Answer]) -> Answer:
        sent = 0
        while True:
            outcome = await self._send(call)
            sent += 1
            settled = settle(call, outcome, self._retries, sent)
            if not isinstance(settled, Wait):
                return settled
            await asyncio.sleep(settled.seconds)

    async def _send(self, call: Call[Answer]) -> httpx2.Response | httpx2.HTTPError:
        try:
            return await self._http.request(call.method, call.path, content=call.content)
        except httpx2.HTTPError as error:
            return error
