"""The two clients, one for ordinary programs and one for programs on an event loop.

Everything but the waiting is shared: `calls` says what is sent, `exchange.settle` what becomes of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self

import httpx2

from diffretriever.client import calls
from diffretriever.client.calls import Answer, Call
from diffretriever.client.exchange import Retries, Wait, settle
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import (
    AskedBudget,
    DeleteResponse,
    EncodeResponse,
    IndexResponse,
    IngestResponse,
    PassageIn,
    SearchResponse,
    Texts,
)

DEFAULT_URL = "http://localhost:8000"


class SearchClient:
    """A connection to a search application, usable from several threads; close it, or use it in a `with` block.

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
        transport: httpx2.BaseTransport | None = None,
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
        self._http = httpx2.Client(**_connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    def search(
        self,
        query: Texts,
        *,
        k: int = 10,
        mode: Mode | None = None,
        budget: AskedBudget = None,
        collection: str | None = None,
        filter: str | None = None,  # noqa: A002 (what everybody calls it)
        explain: bool = False,
        words: int = 0,
    ) -> SearchResponse:
        """Rank passages for one query or several.

        Args:
            query: one query, or a list of them; none blank.
            k: passages wanted for each query.
            mode: score to rank by; None: the index's default.
            budget: K_q of all queries, `adaptive` to have each query's chosen from its text, or None for the
                retriever's own.
            collection: name of the collection that passages are searched in; None: all of them.
            filter: condition on metadata that passages must meet, such as `year >= 2020 AND lang = 'en'`, in place of
                `collection`.
            explain: also say which slots and words each score is made of.
            words: with `explain`, how many words of the whole vocabulary to give for each slot; at most 20 passages.
        """
        call = calls.search(
            query,
            k=k,
            mode=mode,
            budget=budget,
            collection=collection,
            filter=filter,
            explain=explain,
            words=words,
        )
        return self._ask(call)

    def encode(self, query: Texts, *, budget: AskedBudget = None) -> EncodeResponse:
        """Return the vectors and terms of one query or several."""
        return self._ask(calls.encode(query, budget=budget))

    def index(self) -> IndexResponse:
        """Return what is served: the index's state, the retriever, what may be asked."""
        return self._ask(calls.index())

    def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """Add passages, or put them in place of those with their ids: all of them in one step, or none."""
        return self._ask(calls.add(passages))

    def delete_passage(self, passage_id: str) -> DeleteResponse:
        """Delete one passage; one that is not there is a `ProblemError` of status 404."""
        return self._ask(calls.delete(passage_id))

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[Answer]) -> Answer:
        sent = 0
        while True:
            outcome = self._send(call)
            sent += 1
            settled = settle(call, outcome, self._retries, sent)
            if not isinstance(settled, Wait):
                return settled
            time.sleep(settled.seconds)

    def _send(self, call: Call[Answer]) -> httpx2.Response | httpx2.HTTPError:
        try:
            return self._http.request(call.method, call.path, content=call.content)
        except httpx2.HTTPError as error:
            return error


class AsyncSearchClient:
    """The calls of `SearchClient`, awaited, for one event loop; close it, or use it in an `async with` block.

    Calls raise what those of `SearchClient` raise, and are sent again in the same way.
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
        self._http = httpx2.AsyncClient(**_connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    async def search(
        self,
        query: Texts,
        *,
        k: int = 10,
        mode: Mode | None = None,
        budget: AskedBudget = None,
        collection: str | None = None,
        filter: str | None = None,  # noqa: A002 (what everybody calls it)
        explain: bool = False,
        words: int = 0,
    ) -> SearchResponse:
        """Rank passages for one query or several.

        Args:
            query: one query, or a list of them; none blank.
            k: passages wanted for each query.
            mode: score to rank by; None: the index's default.
            budget: K_q of all queries, `adaptive` to have each query's chosen from its text, or None for the
                retriever's own.
            collection: name of the collection that passages are searched in; None: all of them.
            filter: condition on metadata that passages must meet, such as `year >= 2020 AND lang = 'en'`, in place of
                `collection`.
            explain: also say which slots and words each score is made of.
            words: with `explain`, how many words of the whole vocabulary to give for each slot; at most 20 passages.
        """
        call = calls.search(
            query,
            k=k,
            mode=mode,
            budget=budget,
            collection=collection,
            filter=filter,
            explain=explain,
            words=words,
        )
        return await self._ask(call)

    async def encode(self, query: Texts, *, budget: AskedBudget = None) -> EncodeResponse:
        """See `SearchClient.encode`."""
        return await self._ask(calls.encode(query, budget=budget))

    async def index(self) -> IndexResponse:
        """See `SearchClient.index`."""
        return await self._ask(calls.index())

    async def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """See `SearchClient.add_passages`."""
        return await self._ask(calls.add(passages))

    async def delete_passage(self, passage_id: str) -> DeleteResponse:
        """See `SearchClient.delete_passage`."""
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


def _connection(url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of an HTTP client. The key travels in a header, and redirects are not followed with it.

    Raises:
        ValueError: the address is none of HTTP, the key cannot stand in a header, or the time is not positive.
    """
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"url {url!r} is no address ({error}): give one such as {DEFAULT_URL}") from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise ValueError(f"url {url!r} is no address of HTTP: give one such as {DEFAULT_URL}")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}: give a number of seconds above 0")
    headers = {"accept": "application/json, application/problem+json", "content-type": "application/json"}
    if api_key is not None:
        if not api_key or not all("!" <= letter <= "~" for letter in api_key):
            raise ValueError("api_key: give printable ASCII characters without spaces")
        headers["authorization"] = f"Bearer {api_key}"
    return {"base_url": address, "headers": headers, "timeout": timeout_s, "follow_redirects": False}
