"""HTTP requests, responses and problems of the search server. Its settings are in `schemas.serve_config`.

Unknown keys of a request are errors. `ServeLimits` are the server's limits; the types of requests bound what any server
can allow, so that a body with many mistakes is rejected at the first.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.mode import EncodedList, Mode, Way

MOST_QUERIES, MOST_QUERY_CHARS = 1000, 100_000
MOST_K, MOST_BUDGET = 100_000, 1000
MOST_PASSAGES, MOST_PASSAGE_CHARS = 10_000, 10_000_000
MOST_FIELDS, MOST_NAME_CHARS, MAX_FILTER_CHARS = 1000, 4096, 4000
READ_WORDS, MOST_READ_WORDS = 8, 50
"""Predicted tokens per vector: the default and the maximum."""
MOST_READ_PASSAGES = 20
"""Maximum passages of a request with predicted tokens: each slot needs a product with the whole output head."""

_Query: TypeAlias = Annotated[str, Field(max_length=MOST_QUERY_CHARS)]
Texts: TypeAlias = Annotated[list[_Query], Field(max_length=MOST_QUERIES, fail_fast=True)] | _Query
"""One query, or several."""
AskedBudget: TypeAlias = Literal["adaptive"] | Annotated[int, Field(gt=0, le=MOST_BUDGET)] | None
"""K_q: a number for all queries, `adaptive` to choose it for each query, None for the retriever's own."""
Name: TypeAlias = Annotated[str, Field(max_length=MOST_NAME_CHARS)]
"""Id of a passage, or name of a collection or metadata column."""
_Text: TypeAlias = Annotated[str, Field(max_length=MOST_PASSAGE_CHARS)]
Value: TypeAlias = bool | int | float | _Text
"""Value of a metadata column."""


class IndexState(Model):
    """The version of the index that a response comes from."""

    name: str
    """Last part of the path of the index."""
    version: int
    rows: int
    """Number of passages."""
    fingerprint: str
    """Fingerprint of the retriever, 16 hex digits."""
    committed: str
    """ISO 8601 time, UTC, at which the version was committed."""
    checked_seconds_ago: float
    """Seconds since the server last checked for a newer version."""


class Word(Model):
    """A vocabulary entry as text."""

    word: str
    weight: float | None
    """Its impact in the text, log(1 + logit); None if the sparse vector does not contain it."""


class ReadWord(Model):
    """A word of the whole vocabulary that a vector predicts."""

    word: str
    logit: float
    """Logit of the backbone's output head for a final state in the vector's direction."""


Reading: TypeAlias = list[ReadWord]
"""The words that one vector predicts, strongest first; `Word`s are words of the text alone."""


class SlotMatch(Model):
    """A query slot and the passage slot that it matches under MaxSim."""

    slot: int
    """Number of the query slot, from 0."""
    words: list[Word]
    """Content words of the query that the slot predicts, strongest first."""
    passage_slot: int
    """Number of the passage slot with the largest product, from 0; the first of equals."""
    passage_words: list[Word]
    """Content words of the passage that the passage slot predicts."""
    product: float
    """Inner product of the two vectors."""
    share: float | None
    """Share of the dense score; all shares add up to 1. None if the score is 0."""


class TermMatch(Model):
    """A word that query and passage have in common."""

    word: str
    query_weight: float
    passage_weight: float
    product: float
    """Product of the two weights; all products add up to the sparse score."""
    share: float
    """Share of the sparse score."""


class Explanation(Model):
    """The slots and words that the scores of one passage are made of."""

    slots: list[SlotMatch]
    """One for each query slot, in their order; the mean of their products is the dense score."""
    passage_slots: list[list[Word]]
    """The words of every slot of the passage."""
    terms: list[TermMatch]
    """Largest product first; empty without sparse scores."""
    query_readings: list[Reading] = Field(default_factory=list)
    """The words of the whole vocabulary that each query slot predicts; empty unless `words` is set."""
    passage_readings: list[Reading] = Field(default_factory=list)
    """The words of the whole vocabulary that each passage slot predicts; empty unless `words` is set."""
    query_parts: list[str] = Field(default_factory=list)
    """The part of the query's text that each slot pools from; empty if slots pool from the whole text."""
    passage_parts: list[str] = Field(default_factory=list)
    """The part of title and text that each passage slot pools from; also empty if slots were pruned."""


class SearchRequest(Model):
    """Body of `POST /search`."""

    query: Texts
    """One query, or a list of queries; none blank."""
    k: Annotated[int, Field(gt=0, le=MOST_K)] = 10
    """Number of passages per query."""
    mode: Mode | None = None
    """Score to rank by, one that `GET /index` lists or a weighted sum such as dense+0.3bm25. Default: `default_mode` of
    `GET /index`."""
    budget: AskedBudget = None
    """Number of query slots, K_q: a number, or `adaptive` to choose it for each query. Default: the retriever's."""
    filter: Annotated[str, Field(max_length=MAX_FILTER_CHARS)] | None = None
    """Condition on metadata, `id` and `collection`, such as "year >= 2020 AND lang = 'en'". Dense, sparse and BM25
    scores do not change; sums such as `hybrid` are computed from the filtered result lists."""
    explain: bool = False
    """Return the slots and words that each score is made of."""
    words: Annotated[int, Field(ge=0, le=MOST_READ_WORDS)] = 0
    """With `explain`: number of words of the whole vocabulary to return for each slot. For indexes that are `readable`,
    and at most 20 passages, `k` times the queries."""


class BudgetUsed(Model):
    """The K_q of one query."""

    slots: int | None
    """K_q; None for retrievers without slots."""
    reason: Literal["asked", "adaptive", "retriever", "load"]
    """`asked`: the number in the request; `adaptive`: chosen by `rule`; `retriever`: the retriever's own; `load`: one
    of the last two, lowered under load."""
    rule: str | None = None
    """Name of the selector of adaptive budgets: `rule`, `fixed:4` or that of a fitted selector."""
    allowed: tuple[int, ...] = ()
    """Budgets that it chooses from, ascending."""
    features: dict[str, float] = Field(default_factory=dict)
    """Features of the query that it uses, such as `length` in subwords and `entropy` in bits."""


class SearchHit(Model):
    """One passage of a ranking."""

    rank: int
    """From 1."""
    id: str
    title: str
    """May be empty."""
    text: str
    collection: str
    metadata: dict[str, Value | None] = Field(default_factory=dict)
    """Values of the metadata columns, null without one; times in ISO 8601."""
    score: float
    """By the mode of the response."""
    scores: dict[Mode, float | None]
    """The score by the mode and, for a sum, by each of its lists; None if the passage is not in the list, that is among
    the 1000 best by that score (fewer if the response is reduced)."""
    explanation: Explanation | None = None


class QueryResult(Model):
    """The ranking of one query."""

    query: str
    budget: BudgetUsed
    hits: list[SearchHit]
    """Best first; equal scores by id. Fewer than k if no others match."""


class SearchTimings(Model):
    """Milliseconds of the request by stage, waiting for others in the same batch included."""

    choose: float
    """Choosing K_q."""
    encode: float
    search: float
    passages: float
    """Reading texts, and explaining."""
    total: float


class Reduced(Model):
    """Reductions of a response under load, within the bounds of the server's setting `load`."""

    query_slots: int | None
    """Highest K_q of queries whose budget has the reason `load`; None: no query has."""
    candidates: int | None
    """Passages of each list of a sum, and the most that a candidate index retrieves; None: not reduced."""


class SearchResponse(Model):
    """Response to `POST /search`, all of it from one version of the index."""

    index: IndexState
    mode: Mode
    results: list[QueryResult]
    """One for each query, in their order."""
    timings_ms: SearchTimings
    missing_shards: tuple[int, ...] = ()
    """Numbers of the shards that did not answer, from 0. Always empty unless `shards_needed` allows it."""
    reduced: Reduced | None = None
    """Reductions under load; None if there are none or the server's `load` is unset."""


class EncodeRequest(Model):
    """Body of `POST /encode`."""

    query: Texts
    """One query, or a list of queries; none blank."""
    budget: AskedBudget = None


class EncodedSlot(Model):
    """A vector of a query."""

    words: list[Word]
    """Content words of the query that the slot predicts, strongest first."""
    vector: list[float]
    """H numbers: the unit vector that is searched with (fp16 values)."""


class EncodedQuery(Model):
    """The representations of one query."""

    query: str
    budget: BudgetUsed
    slots: list[EncodedSlot]
    terms: list[Word]
    """The sparse vector, largest weight first."""


class EncodeResponse(Model):
    """Response to `POST /encode`."""

    fingerprint: str
    """Fingerprint of the retriever."""
    results: list[EncodedQuery]


class ServeLimits(Model):
    """Limits on requests."""

    max_query_chars: Annotated[PositiveInt, Field(le=MOST_QUERY_CHARS)] = 4000
    """Characters of one query."""
    max_queries: Annotated[PositiveInt, Field(le=MOST_QUERIES)] = 64
    """Queries of one request."""
    max_k: Annotated[PositiveInt, Field(le=MOST_K)] = 1000
    """Passages of a ranking."""
    max_hits: PositiveInt = 10_000
    """Passages of a response: `k` times the queries."""
    max_explained: PositiveInt = 200
    """Passages of a response with `explain`."""
    max_budget: Annotated[PositiveInt, Field(le=MOST_BUDGET)] = 32
    """Largest K_q."""
    max_passages: Annotated[PositiveInt, Field(le=MOST_PASSAGES)] = 256
    """Passages of one `POST /passages`."""
    max_passage_chars: Annotated[PositiveInt, Field(le=MOST_PASSAGE_CHARS)] = 100_000
    """Characters of title and text of one passage."""
    max_body_bytes: PositiveInt = 4 << 20
    """Bytes of a body."""
    body_s: PositiveFloat = 5.0
    """Seconds in which a body must arrive, then status 408. Its first 64 KiB have five in any case behind
    serve/front.py."""
    timeout_s: PositiveFloat = 30.0
    """Seconds for one request, then status 503."""


class PartState(Model):
    """The size and search methods of one shard of the version that is searched."""

    fragments: int
    passages: int
    mapped_bytes: int
    """Bytes of the 8-bit codes and postings on its disk."""
    candidates: int | None = None
    """Passages that its candidate index retrieves for each query; None: all passages are scored."""
    found_by: dict[EncodedList, Way]
    """Search method of each score of the retriever."""


class IndexResponse(Model):
    """Response to `GET /index`."""

    index: IndexState
    title: str
    """Method, backbone and budget of the retriever, for people."""
    method: str
    """`masked`, `generated`, `pooled`, `tokens`, `library`, or the name of an installed encoder."""
    modes: list[Mode]
    """Scores of the retriever."""
    default_mode: Mode
    """Score of requests without a mode."""
    further_modes: list[Mode] = Field(default_factory=list)
    """BM25, and sums with it. The first such query after a change of the index can be slow."""
    query_budget: int | None
    """The retriever's K_q; None if queries have no budget."""
    passage_budget: int
    """K_p, most vectors of a passage."""
    readable: bool = False
    """Whether explanations can return `words` of the whole vocabulary."""
    adaptive: str | None
    """Name of the selector for `budget: adaptive`; None if that is not available."""
    collections: dict[str, int]
    """Passages by collection."""
    metadata: Columns = Field(default_factory=dict)
    """Metadata columns and their types; a filter can also use `id` and `collection`."""
    found_by: dict[EncodedList, list[Way]]
    """Search methods of each score of the retriever; several if shards differ. Files made for an index while it is
    served are used from its next version on."""
    parts: list[PartState] = Field(default_factory=list)
    """The shards, in the order of their numbers; one part without shards."""
    limits: ServeLimits


class PassageIn(Model):
    """A passage to add, or to replace the one with its id."""

    id: Name
    """Without whitespace or control characters."""
    title: _Text = ""
    text: _Text = ""
    """Title or text may be empty, not both."""
    collection: Name = Field(default="served", min_length=1)
    metadata: dict[Name, Value | None] = Field(default_factory=dict, max_length=MOST_FIELDS, fail_fast=True)
    """Values of the columns that `GET /index` lists under `metadata`; days and times in ISO 8601."""


class IngestRequest(Model):
    """Body of `POST /passages`: written in one step, or not at all."""

    passages: list[PassageIn] = Field(min_length=1, max_length=MOST_PASSAGES, fail_fast=True)
    """Each id once."""


class IngestResponse(Model):
    """Response to `POST /passages`."""

    added: int
    replaced: int
    """Passages whose id was there with another title, text, collection or metadata."""
    unchanged: int
    """Passages that were there already."""
    version: int
    """First version of the index with all of them. This replica answers later searches from it or a newer one, other
    replicas within seconds."""


class DeleteResponse(Model):
    """Response to `DELETE /passages/{id}`."""

    deleted: int
    """1; an unknown passage is a problem with status 404."""
    version: int
    """First version of the index without it."""


class Health(Model):
    """Response to `GET /healthz` and `GET /readyz`."""

    status: Literal["ok"]


class Problem(Model):
    """Every response with a status of 400 or more (RFC 9457, `application/problem+json`)."""

    type: str
    """`urn:diffretriever:problem:KIND`: the kind of problem, for programs."""
    title: str
    """The kind of problem, for people."""
    status: int
    detail: str
    """The mistake in this request."""
    field: str | None = None
    """The field of the request, such as `query.3` or `budget`."""
    fix: str
    """The suggested fix."""
    instance: str
    """Path of the request."""
