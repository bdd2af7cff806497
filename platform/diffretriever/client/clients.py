"""A blocking client and one for an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from diffretriever.client.exchange import Answer, Call, Retries
from diffretriever.schemas.base import error_messages
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import (
    DeleteResponse,
    EncodeRequest,
    EncodeResponse,
    IndexResponse,
    IngestRequest,
    IngestResponse,
    PassageIn,
    RequestedBudget,
    SearchRequest,
    SearchResponse,
    Texts,
)

DEFAULT_URL = "http://localhost:8000"
Body = TypeVar("Body", bound=BaseModel)


class SearchOptions(TypedDict, total=False):
    """Options of a search, with the defaults of `SearchRequest`."""

    k: int
    """Passages per query."""
    mode: Mode | None
    """Score to rank by."""
    budget: RequestedBudget
    """Number of query slots, K_q, or `adaptive` to choose it per query."""
    filter: str | None
    """Condition on metadata, `id` and `collection`, such as `year >= 2020 AND lang = 'en'`."""
    explain: bool
    """Return the slots and terms behind each score."""
    words: int
    """With `explain`, number of predicted tokens to return per slot, for at most 20 passages."""


class SearchClient:
    """A thread-safe connection to a search server. Close it, or use it in a `with` block.

    Calls raise `ProblemError` if the server rejects the request, `AnswerError` if the response is not from this
    service, `UnreachableError` without a response, and `ValueError` for invalid arguments. `retries` controls how often
    a request that was not sent or hit a busy server is repeated.

    Example:
        >>> from diffretriever.client import SearchClient
        >>> with SearchClient("http://localhost:8000") as client:
        ...     response = client.search("when do I cut roses?", k=1)
        >>> [hit.id for hit in response.results[0].hits]
        ['roses']
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
            api_key: API key of the server, if it has one.
            timeout_s: seconds without data after which an attempt fails.
            retries: number of attempts, and the waits between them.
            transport: replaces the network in tests.

        Raises:
            ValueError: an argument is invalid; the message names it.
        """
        self._http = httpx2.Client(**_connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    def search(self, query: Texts, **options: Unpack[SearchOptions]) -> SearchResponse:
        """Search for one query, or for several at once.

        Example:
            >>> response = client.search(["roses", "sourdough"], k=1, mode="dense", filter="year > 2000")
            >>> [result.hits[0].id for result in response.results]
            ['roses', 'bread']
        """
        return self._send(_search(query, **options))

    def encode(self, query: Texts, *, budget: RequestedBudget = None) -> EncodeResponse:
        """Return the vectors and terms of one query, or of several.

        Example:
            >>> encoded = client.encode("when do I cut roses?", budget=2).results[0]
            >>> len(encoded.slots), len(encoded.slots[0].vector)
            (2, 384)
        """
        return self._send(_encode(query, budget))

    def index(self) -> IndexResponse:
        """Return the state of the index, its retriever, and the limits of requests.

        Example:
            >>> client.index().collections
            {'garden': 2}
        """
        return self._send(_INDEX)

    def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """Add passages, or replace those with the same ids, in one commit.

        Example:
            >>> from diffretriever.schemas.serve import PassageIn
            >>> client.add_passages([PassageIn(id="figs", text="Water figs weekly.")]).added
            1
            >>> client.delete_passage("figs").deleted
            1
        """
        return self._send(_add(passages))

    def delete_passage(self, passage_id: str) -> DeleteResponse:
        """Delete one passage; an unknown id is a `ProblemError` with status 404."""
        return self._send(_delete(passage_id))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[Answer]) -> Answer:
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
    """The calls of `SearchClient` for one event loop. Close it, or use it in an `async with` block.

    Example:
        >>> import asyncio
        >>> from diffretriever.client import AsyncSearchClient
        >>> async def find(query: str) -> str:
        ...     async with AsyncSearchClient("http://localhost:8000") as client:
        ...         response = await client.search(query, k=1)
        ...     return response.results[0].hits[0].id
        >>> asyncio.run(find("when do I cut roses?"))
        'roses'
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
        """Create a client; see `SearchClient`."""
        self._http = httpx2.AsyncClient(**_connection(url, api_key, timeout_s), transport=transport)
        self._retries = retries or Retries()

    async def search(self, query: Texts, **options: Unpack[SearchOptions]) -> SearchResponse:
        """See `SearchClient.search`."""
        return await self._send(_search(query, **options))

    async def encode(self, query: Texts, *, budget: RequestedBudget = None) -> EncodeResponse:
        """See `SearchClient.encode`."""
        return await self._send(_encode(query, budget))

    async def index(self) -> IndexResponse:
        """See `SearchClient.index`."""
        return await self._send(_INDEX)

    async def add_passages(self, passages: Sequence[PassageIn]) -> IngestResponse:
        """See `SearchClient.add_passages`."""
        return await self._send(_add(passages))

    async def delete_passage(self, passage_id: str) -> DeleteResponse:
        """See `SearchClient.delete_passage`."""
        return await self._send(_delete(passage_id))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[Answer]) -> Answer:
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
    return Call("POST", "search", SearchResponse, _body(SearchRequest, query=query, **options))


def _encode(query: Texts, budget: RequestedBudget) -> Call[EncodeResponse]:
    return Call("POST", "encode", EncodeResponse, _body(EncodeRequest, query=query, budget=budget))


def _add(passages: Sequence[PassageIn]) -> Call[IngestResponse]:
    return Call("POST", "passages", IngestResponse, _body(IngestRequest, passages=list(passages)), reads=False)


def _delete(passage_id: str) -> Call[DeleteResponse]:
    return Call("DELETE", f"passages/{quote(passage_id, safe='')}", DeleteResponse, reads=False)


def _body(kind: type[Body], **fields: Any) -> Body:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ValueError("; or: ".join(error_messages(error))) from None


def _connection(url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of an HTTP client. It follows no redirects, which would leak the key."""
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"url {url!r} is not an address ({error}): set one such as {DEFAULT_URL}") from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise ValueError(f"url {url!r} is not an HTTP address: set one such as {DEFAULT_URL}")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}: set seconds above 0")
    headers = {"accept": "application/json, application/problem+json", "content-type": "application/json"}
    if api_key is not None:
        if not api_key or not all("!" <= letter <= "~" for letter in api_key):
            raise ValueError("api_key: use printable ASCII characters without spaces")
        headers["authorization"] = f"Bearer {api_key}"
    return {"base_url": address, "headers": headers, "timeout": timeout_s, "follow_redirects": False}
