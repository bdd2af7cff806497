"""What goes over HTTP: requests, answers and problems of the search application. The config is `schemas.serve_config`.

Unknown keys of a request are refused. Limits on lengths and counts are the server's, and `GET /index` says them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, PositiveInt

from schemas.base import Model
from schemas.retriever_parts import Mode
from schemas.serve_explain import Explanation, Word
from schemas.serve_index import IndexResponse, IndexState, LimitsInForce
from schemas.serve_passages import DeleteResponse, IngestRequest, IngestResponse, PassageIn

__all__ = [
    "AskedBudget",
    "BudgetUsed",
    "DeleteResponse",
    "EncodeRequest",
    "EncodeResponse",
    "EncodedQuery",
    "EncodedSlot",
    "Explanation",
    "Filter",
    "Health",
    "IndexResponse",
    "IndexState",
    "IngestRequest",
    "IngestResponse",
    "LimitsInForce",
    "PassageIn",
    "Problem",
    "QueryResult",
    "SearchHit",
    "SearchRequest",
    "SearchResponse",
    "SearchTimings",
    "Texts",
    "Word",
]

Texts: TypeAlias = str | list[str]
"""One query, or several that are answered together."""
AskedBudget: TypeAlias = Literal["adaptive"] | PositiveInt | None
"""K_q: a number for all queries, `adaptive` to have each query's chosen from its text, None for the retriever's own."""


class Filter(Model):
    """Which passages count. The answer is that of an index that holds no others."""

    collection: str
    """Only passages of this collection; `GET /index` names them all."""


class SearchRequest(Model):
    """Body of `POST /search`."""

    query: Texts
    """One query, or a list of them; none blank."""
    k: PositiveInt = 10
    """Passages wanted for each query."""
    mode: Mode | None = None
    """Score to rank by; default: hybrid where the index offers it, else what it has."""
    budget: AskedBudget = None
    """K_q, the slots of each query; retrievers without slots take none."""
    filter: Filter | None = None
    """Search among some passages only."""
    explain: bool = False
    """Also say, for each passage, which slots and words its scores are made of."""


class BudgetUsed(Model):
    """The K_q of one query, and why."""

    slots: int | None
    """K_q; None for retrievers without slots."""
    reason: Literal["asked", "adaptive", "retriever"]
    """`asked`: the number in the request; `adaptive`: chosen by `rule`; `retriever`: the retriever's own."""
    rule: str | None = None
    """What chose, where it was adaptive: `rule`, `fixed:4` or a fitted selector's name."""
    allowed: tuple[int, ...] = ()
    """K_q that it chose from, ascending."""
    features: dict[str, float] = Field(default_factory=dict)
    """The features of the query that it looked at, such as `length` in subwords and `entropy` in bits."""


class SearchHit(Model):
    """One passage of a ranking."""

    rank: int
    """From 1."""
    id: str
    title: str
    """May be empty."""
    text: str
    collection: str
    score: float
    """By the mode of the answer."""
    scores: dict[Mode, float | None]
    """Every score known: that of the mode, and in hybrid answers the dense and the sparse score, None where the passage
    is not among the 1000 best by it (hybrid then counts 0)."""
    explanation: Explanation | None = None
    """If it was asked for."""


class QueryResult(Model):
    """The ranking of one query."""

    query: str
    budget: BudgetUsed
    hits: list[SearchHit]
    """Best first; equal scores by id. Fewer than k where there are no more, or share no word with a sparse query."""


class SearchTimings(Model):
    """Milliseconds of the request by stage, waiting for others in the same batch included."""

    choose: float
    """Choosing K_q."""
    encode: float
    search: float
    passages: float
    """Reading the texts, and explaining."""
    total: float


class SearchResponse(Model):
    """Answer of `POST /search`: all of it from one version of the index."""

    index: IndexState
    mode: Mode
    results: list[QueryResult]
    """One for each query, in their order."""
    timings_ms: SearchTimings


class EncodeRequest(Model):
    """Body of `POST /encode`."""

    query: Texts
    """As in a search."""
    budget: AskedBudget = None


class EncodedSlot(Model):
    """A vector of a query."""

    words: list[Word]
    """The words that the slot predicts, strongest first; empty where it predicts none of the query's."""
    vector: list[float]
    """H numbers, a unit vector as it is searched with (fp16 values)."""


class EncodedQuery(Model):
    """The representations of one query."""

    query: str
    budget: BudgetUsed
    slots: list[EncodedSlot]
    terms: list[Word]
    """The sparse side, heaviest first."""


class EncodeResponse(Model):
    """Answer of `POST /encode`."""

    fingerprint: str
    """Of the retriever."""
    results: list[EncodedQuery]


class Health(Model):
    """Answer of `GET /healthz` and `GET /readyz`."""

    status: Literal["ok"]


class Problem(Model):
    """What every answer with a status of 400 or more is (RFC 9457, `application/problem+json`)."""

    type: str
    """`urn:diffretriever:problem:KIND`: the kind of problem, for programs."""
    title: str
    """The kind for people."""
    status: int
    detail: str
    """What is wrong with this request."""
    field: str | None = None
    """Which field of the request, such as `query.3` or `budget`."""
    fix: str
    """What to do."""
    instance: str
    """Path that was asked."""
