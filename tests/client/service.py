"""Responses of a server, and one call with either client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from diffretriever.client import AsyncSearchClient, Retries, SearchClient
from diffretriever.schemas.serve import DeleteResponse, IngestResponse, PassageIn, Problem, SearchResponse

Handler = Callable[[httpx2.Request], httpx2.Response]
HIT = {"rank": 1, "id": "p1", "title": "Heat", "text": "in a slab", "collection": "c", "score": 0.5}
INDEX = {
    "name": "mine",
    "version": 3,
    "rows": 1,
    "fingerprint": "0" * 16,
    "committed": "2026",
    "checked_seconds_ago": 0,
}
FOUND = SearchResponse.model_validate(
    {
        "index": INDEX,
        "mode": "hybrid",
        "results": [
            {
                "query": "heat",
                "budget": {"slots": 4, "reason": "request"},
                "hits": [{**HIT, "scores": {"hybrid": 0.5, "dense": 0.25, "sparse": None}}],
            }
        ],
        "timings_ms": {"choose": 0.1, "encode": 5, "search": 2, "passages": 0.5, "total": 7.6},
    }
)
ADDED = IngestResponse(added=1, replaced=0, unchanged=0, version=4)
DELETED = DeleteResponse(deleted=1, version=5)
REFUSED = Problem(
    type="urn:diffretriever:problem:invalid",
    title="The request is not valid",
    status=422,
    detail="K_q 99 is too large",
    field="budget",
    fix="ask for at most 32",
    instance="/search",
)
PASSAGE = PassageIn(id="p1", title="Heat", text="in a slab")


def ok(value: Any) -> httpx2.Response:
    return httpx2.Response(200, content=value.model_dump_json())


def problem(status: int = 422, headers: dict[str, str] | None = None) -> httpx2.Response:
    body = REFUSED.model_copy(update={"status": status}).model_dump_json()
    return httpx2.Response(
        status, content=body, headers={"content-type": "application/problem+json", **(headers or {})}
    )


class Script:
    """Answers each request with the next outcome, and records the requests."""

    def __init__(self, outcomes: Sequence[httpx2.Response | Exception]) -> None:
        self._outcomes = list(outcomes)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


Ask = Callable[..., Any]


def blocking(handler: Handler, call: str, *args: Any, retries: Retries | None = None, **options: Any) -> Any:
    with SearchClient("http://service/", transport=httpx2.MockTransport(handler), retries=retries) as client:
        return getattr(client, call)(*args, **options)


def awaited(handler: Handler, call: str, *args: Any, retries: Retries | None = None, **options: Any) -> Any:
    async def run() -> Any:
        transport = httpx2.MockTransport(handler)
        async with AsyncSearchClient("http://service/", transport=transport, retries=retries) as client:
            return await getattr(client, call)(*args, **options)

    return asyncio.run(run())
