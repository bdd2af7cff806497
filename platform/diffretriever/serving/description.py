"""OpenAPI metadata: tags, security schemes, and an example of every request and response.

The examples form a story: passages are added, retrieved, explained and deleted.
"""

from __future__ import annotations

from typing import Any

from fastapi import Body
from pydantic import BaseModel

from diffretriever.schemas import serve as http
from diffretriever.serving import problems

TAGS = [
    {"name": "search", "description": "Rank passages, and encode queries into vectors and terms."},
    {"name": "passages", "description": "Change the index. Each request is atomic."},
    {"name": "service", "description": "State of the index and of the server. The health checks need no key."},
]
COMPONENTS: dict[str, dict[str, Any]] = {
    "schemas": {"Problem": http.Problem.model_json_schema()},
    "securitySchemes": {
        "bearer": {"type": "http", "scheme": "bearer", "description": "API key, if the server has keys."},
        "header": {
            "type": "apiKey",
            "in": "header",
            "name": "X-API-Key",
            "description": "The same key, in another header.",
        },
    },
}
"""Components that routes do not define. Either scheme is enough; a server without keys needs neither."""
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}, {}]

_QUERY = "when do I prune roses?"
_NOTE = http.PassageIn(id="note-1", title="Roses", text="Prune them in late winter, above a bud.", collection="notes")
_BUDGET = http.BudgetUsed(slots=2, reason="asked")
_WORDS = [http.Word(word="roses", weight=1.72), http.Word(word="prune", weight=1.31)]
_STATE = http.IndexState(
    name="notes",
    version=3,
    rows=41,
    fingerprint="4c3732503e4ccf46",
    committed="2026-11-23T02:05:46+00:00",
    checked_seconds_ago=0.4,
)

SEARCHING = http.SearchRequest(
    query=_QUERY, k=3, budget="adaptive", filter="collection = 'notes'", explain=True, words=3
)
ENCODING = http.EncodeRequest(query=_QUERY)
ADDING = http.IngestRequest(passages=[_NOTE, http.PassageIn(id="note-2", text="Sourdough rises for a night.")])
FOUND = http.SearchResponse(
    index=_STATE,
    mode="hybrid",
    results=[
        http.QueryResult(
            query=_QUERY,
            budget=_BUDGET,
            hits=[
                http.SearchHit(
                    rank=1,
                    id=_NOTE.id,
                    title=_NOTE.title,
                    text=_NOTE.text,
                    collection=_NOTE.collection,
                    score=2.0,
                    scores={"hybrid": 2.0, "dense": 0.83, "sparse": 4.2},
                )
            ],
        )
    ],
    timings_ms=http.SearchTimings(choose=0.2, encode=6.1, search=1.4, passages=0.6, total=8.5),
)
ENCODED = http.EncodeResponse(
    fingerprint=_STATE.fingerprint,
    results=[
        http.EncodedQuery(
            query=_QUERY,
            budget=_BUDGET,
            slots=[
                http.EncodedSlot(words=_WORDS[:1], vector=[0.6, 0.8]),
                http.EncodedSlot(words=_WORDS[1:], vector=[0.8, -0.6]),
            ],
            terms=_WORDS,
        )
    ],
)
DESCRIBED = http.IndexResponse(
    index=_STATE,
    title="masked minilm q2p4",
    method="masked",
    modes=["dense", "sparse", "hybrid"],
    default_mode="hybrid",
    further_modes=["bm25", "dense+bm25"],
    query_budget=2,
    passage_budget=4,
    readable=True,
    adaptive="rule",
    collections={"notes": 40, "served": 1},
    found_by={"dense": ["codes"], "sparse": ["postings"]},
    parts=[
        http.PartState(fragments=2, passages=41, mapped_bytes=61_440, found_by={"dense": "codes", "sparse": "postings"})
    ],
    limits=http.ServeLimits(),
)
ADDED = http.IngestResponse(added=2, replaced=0, unchanged=0, version=4)
DELETED = http.DeleteResponse(deleted=1, version=5)
WELL = http.Health(status="ok")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of problems, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    kinds: list[type[problems.RequestError]] = [problems.RequestError, *problems.RequestError.__subclasses__()]
    for kind in kinds:
        if kind.status in statuses and kind.status not in responses:
            example = http.Problem(
                type=f"urn:diffretriever:problem:{kind.kind}",
                title=kind.title,
                status=kind.status,
                detail="what is wrong with this request",
                fix="what to do",
                instance="/search",
            ).model_dump(mode="json")
            content = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}
            responses[kind.status] = {"description": kind.title, "content": {"application/problem+json": content}}
    return responses


def answer(example: BaseModel) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI response of a successful request."""
    content = {"application/json": {"example": example.model_dump(mode="json")}}
    return {200: {"description": "Success", "content": content}}


def body(example: BaseModel) -> Any:
    """Return a request body with an example, without default values."""
    value = example.model_dump(mode="json", exclude_defaults=True)
    return Body(openapi_examples={"example": {"summary": "Example", "value": value}})
