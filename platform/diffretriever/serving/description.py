"""What OpenAPI says of the interface beside its schemas: groups, keys, and an example of every request and answer.

The examples follow each other: passages are added, then found, explained and deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from diffretriever.schemas.serve import (
    BudgetUsed,
    DeleteResponse,
    EncodedQuery,
    EncodedSlot,
    EncodeRequest,
    EncodeResponse,
    Filter,
    Health,
    IndexResponse,
    IndexState,
    IngestRequest,
    IngestResponse,
    PartState,
    PassageIn,
    Problem,
    QueryResult,
    SearchHit,
    SearchRequest,
    SearchResponse,
    SearchTimings,
    ServeLimits,
    Word,
)
from diffretriever.serving.problems import (
    ForbiddenError,
    InvalidError,
    MalformedError,
    MisdirectedError,
    NotFoundError,
    RequestError,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedError,
)

TITLE = "DiffRetriever"
SUMMARY = "Search an index of passages, add to it, and see what queries are represented by."
TAGS = [
    {"name": "search", "description": "Ranking passages, and the vectors and words that they are ranked by."},
    {"name": "passages", "description": "Changing the index: each request is one step, done whole or not at all."},
    {"name": "service", "description": "What is served, and whether it answers. The last two need no key."},
]
COMPONENTS: dict[str, dict[str, Any]] = {
    "schemas": {"Problem": Problem.model_json_schema()},
    "securitySchemes": {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A key, where the server has keys."},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same in another header."},
    },
}
"""What no route brings with it. Either scheme is enough, and a server without keys asks for none."""
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}, {}]

_QUERY = "when do I prune roses?"
_NOTE = PassageIn(id="note-1", title="Roses", text="Prune them in late winter, above a bud.", collection="notes")
_BUDGET = BudgetUsed(slots=2, reason="asked")
_WORDS = [Word(word="roses", weight=1.72), Word(word="prune", weight=1.31)]
_STATE = IndexState(
    name="notes",
    version=3,
    rows=41,
    fingerprint="4c3732503e4ccf46",
    committed="2026-11-23T02:05:46+00:00",
    checked_seconds_ago=0.4,
)

SEARCHES: dict[str, tuple[str, SearchRequest]] = {
    "query": ("One query, with what the server chooses by itself", SearchRequest(query=_QUERY)),
    "queries": (
        "Several queries, each with the budget that its text asks for",
        SearchRequest(query=[_QUERY, "bread without yeast"], k=3, budget="adaptive"),
    ),
    "explained": (
        "In one collection, with what the scores are made of",
        SearchRequest(query=_QUERY, k=3, filter=Filter(collection="notes"), explain=True, words=3),
    ),
}
"""Name → what it shows, and a body of `POST /search`."""
ENCODING = EncodeRequest(query=_QUERY)
ADDING = IngestRequest(passages=[_NOTE, PassageIn(id="note-2", text="Sourdough rises for a night.")])
FOUND = SearchResponse(
    index=_STATE,
    mode="hybrid",
    results=[
        QueryResult(
            query=_QUERY,
            budget=_BUDGET,
            hits=[
                SearchHit(
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
    timings_ms=SearchTimings(choose=0.2, encode=6.1, search=1.4, passages=0.6, total=8.5),
)
ENCODED = EncodeResponse(
    fingerprint=_STATE.fingerprint,
    results=[
        EncodedQuery(
            query=_QUERY,
            budget=_BUDGET,
            slots=[EncodedSlot(words=_WORDS[:1], vector=[0.6, 0.8]), EncodedSlot(words=_WORDS[1:], vector=[0.8, -0.6])],
            terms=_WORDS,
        )
    ],
)
DESCRIBED = IndexResponse(
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
    parts=[PartState(fragments=2, passages=41, mapped_bytes=61_440, found_by={"dense": "codes", "sparse": "postings"})],
    limits=ServeLimits(),
)
ADDED = IngestResponse(added=2, replaced=0, unchanged=0, version=4)
DELETED = DeleteResponse(deleted=1, version=5)
WELL = Health(status="ok")
_PROBLEMS: tuple[tuple[RequestError, str], ...] = (
    (MalformedError("the body is no JSON: Expecting value", "send one JSON object, encoded as UTF-8"), "/search"),
    (UnauthorizedError("the request has no valid API key", "send it as `Authorization: Bearer KEY`"), "/search"),
    (ForbiddenError("this API key may search, and not change the index", "send the key for writing"), "/passages"),
    (NotFoundError("there is no passage 'note-9'", "check the id", "id"), "/passages/note-9"),
    (TooSlowError("512 bytes have arrived", "send it at once: a body has 5 seconds"), "/search"),
    (TooLargeError("the body has more bytes than the server takes", "send at most 4194304 bytes"), "/search"),
    (UnsupportedError("text/plain"), "/search"),
    (InvalidError("2000 passages are too many", "ask for at most 1000", "k"), "/search"),
    (MisdirectedError("search.example.org"), "/search"),
    (UnavailableError("64 requests are being worked on already", 1), "/search"),
)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of problems, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for error, path in _PROBLEMS:
        if error.status in statuses:
            schema = {"$ref": "#/components/schemas/Problem"}
            content = {"schema": schema, "example": error.problem(path).model_dump(mode="json")}
            found[error.status] = {"description": error.title, "content": {"application/problem+json": content}}
    return found


def answer(example: BaseModel) -> dict[int | str, dict[str, Any]]:
    """Return the description of an operation's answer."""
    content = {"application/json": {"example": example.model_dump(mode="json")}}
    return {200: {"description": "The answer", "content": content}}


def bodies(examples: Mapping[str, tuple[str, BaseModel]]) -> dict[str, Any]:
    """Return request bodies as OpenAPI's named examples; what has its default is left out."""
    return {
        name: {"summary": summary, "value": body.model_dump(mode="json", exclude_defaults=True)}
        for name, (summary, body) in examples.items()
    }
