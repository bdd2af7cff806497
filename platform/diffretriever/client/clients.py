"""The two clients: one blocks, the other is for an event loop. They differ in how they wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from diffretriever.client.exchange import Answer, Call, Retries
from diffretriever.schemas.base import mistakes
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import (
    AskedBudget,
    DeleteResponse,
    EncodeRequest,
    EncodeResponse,
    Filter,
    IndexResponse,
    IngestRequest,
    IngestResponse,
    PassageIn,
    SearchRequest,
    SearchResponse,
    Texts,
)

DEFAULT_URL = "http://localhost:8000"
Body = TypeVar("Body", bound=BaseModel)


class SearchOptions(TypedDict, total=False):
    """Options of a search; one that is left out has the default of `SearchRequest`."""

    k: int
    """Passages to return for each query."""
    mode: Mode | None
    """Score to rank by."""
    budget: AskedBudget
    """K_q of all queries, or `adaptive` to choose it for each query."""
    collection: str | None
    """Name of the collection to search in; None: all."""
    filter: str | None
    """Condition on metadata, such as `year >= 2020 AND lang = 'en'`; not with `collection`."""
    explain: bool
    """Return the slots and words that each score is made of."""
    words: int
    """With `explain`, number of words of the whole vocabulary to return for each slot, for at most 20 passages."""


class SearchClient:
    """A connection to a search server, usable from several threads. Close it, or use it in a `with` block.

    Calls raise `ProblemError` if the server rejects the request, `AnswerError` if the response is not one of this
    service, `UnreachableError` if there is none, and `ValueError` for impossible arguments. Requests that were rejected
    as too many or could not be sent are sent again, as `retries` says.
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
        """Create a client. The first call connects.

        Args:
            url: address of the server, such as `http://localhost:8000`.
            api_key: key of the server, if it has one.
            timeout_s: seconds without data after which an attempt fails.
            retries: number of attempts, and the waits between them.
            transport: replaces the network, for tests.

        Raises:
            ValueError: an argument is impossible; the message names it.
        """
        self._http = httpx2.Client(**_connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    def search(self, query: Texts, **options: Unpack[SearchOptions]) -> SearchResponse:
        """Search for one query or several, none blank."""
        return self._ask(_search(query, **options))

    def encode(self, query: Texts, *, budget: AskedBudget = None) -> EncodeResponse:
        """Return the vectors and terms of one query or several."""
        return self._ask(_encode(query, budget))

    def index(self) -> IndexResponse:
        """Return the state of the index, its retriever, and the limits of requests."""
        return self._ask(_INDEX)

    def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """Add passages, or replace those with their ids: all of them in one step, or none."""
        return self._ask(_add(passages))

    def delete_passage(self, passage_id: str) -> DeleteResponse:
        """Delete one passage; an unknown id is a `ProblemError` with status 404."""
        return self._ask(_delete(passage_id))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[Answer]) -> Answer:
        sent = 0
        while True:
            outcome: httpx2.Response | httpx2.HTTPError
            try:
                outcome = self._http.request(call.method, call.path, content=call.content)
            except httpx2.HTTPError as error:
                outcome = error
            sent += 1
            settled = call.settle(outcome, self._retries, sent)
            if not isinstance(settled, float):
                return settled
            time.sleep(settled)


class AsyncSearchClient:
    """The calls of `SearchClient`, awaited, for one event loop. Close it, or use it in an `async with` block."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        retries: Retries | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Create a client; see `SearchClient`."""
        self._http = httpx2.AsyncClient(**_connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    async def search(self, query: Texts, **options: Unpack[SearchOptions]) -> SearchResponse:
        """See `SearchClient.search`."""
        return await self._ask(_search(query, **options))

    async def encode(self, query: Texts, *, budget: AskedBudget = None) -> EncodeResponse:
        """See `SearchClient.encode`."""
        return await self._ask(_encode(query, budget))

    async def index(self) -> IndexResponse:
        """See `SearchClient.index`."""
        return await self._ask(_INDEX)

    async def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """See `SearchClient.add_passages`."""
        return await self._ask(_add(passages))

    async def delete_passage(self, passage_id: str) -> DeleteResponse:
        """See `SearchClient.delete_passage`."""
        return await self._ask(_delete(passage_id))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[Answer]) -> Answer:
        sent = 0
        while True:
            outcome: httpx2.Response | httpx2.HTTPError
            try:
                outcome = await self._http.request(call.method, call.path, content=call.content)
            except httpx2.HTTPError as error:
                outcome = error
            sent += 1
            settled = call.settle(outcome, self._retries, sent)
            if not isinstance(settled, float):
                return settled
            await asyncio.sleep(settled)


_INDEX = Call("GET", "index", IndexResponse)


def _search(query: Texts, **options: Unpack[SearchOptions]) -> Call[SearchResponse]:
    collection, condition = options.pop("collection", None), options.pop("filter", None)
    if collection is not None and condition is not None:
        raise ValueError(f"give collection or filter, not both: a filter can say (…) AND collection = '{collection}'")
    chosen = condition if collection is None else _body(Filter, collection=collection)
    return Call("POST", "search", SearchResponse, _body(SearchRequest, query=query, filter=chosen, **options))


def _encode(query: Texts, budget: AskedBudget) -> Call[EncodeResponse]:
    return Call("POST", "encode", EncodeResponse, _body(EncodeRequest, query=query, budget=budget))


def _add(passages: Sequence[PassageIn]) -> Call[IngestResponse]:
    return Call("POST", "passages", IngestResponse, _body(IngestRequest, passages=list(passages)), reads=False)


def _delete(passage_id: str) -> Call[DeleteResponse]:
    return Call("DELETE", f"passages/{quote(passage_id, safe='')}", DeleteResponse, reads=False)


def _body(kind: type[Body], **fields: Any) -> Body:
    """Return a body; raise `ValueError`, with the field and the fix, if it is not valid."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ValueError("; or: ".join(mistakes(error))) from None


def _connection(url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of an HTTP client. It does not follow redirects, which would take the key along.

    Raises:
        ValueError: the URL is not one of HTTP, a header cannot contain the key, or the time is not positive.
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
