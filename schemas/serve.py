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
RequestedBudget: TypeAlias = Literal["adaptive"] | Annotated[int, Field(gt=0, le=MOST_BUDGET)] | None
"""K_q: a number for all queries, `adaptive` to choose it for each query, None for the retriever's own."""
Name: TypeAlias = Annotated[str, Field(max_length=MOST_NAME_CHARS)]
"""Id of a passage, or name of a collection or metadata column."""
_Text: TypeAlias = Annotated[str, Field(max_length=MOST_PASSAGE_CHARS)]
Value: TypeAlias = bool | int | float | _Text
"""Value of a metadata column."""


class IndexState(Model):
    """The version of the index that a response comes from."""

    name: str
    """Name of the index: the last part of its path."""
    version: int
    """Number of the version; each change of the index adds one."""
    rows: int
    """Number of passages."""
    fingerprint: str
    """Identifies the retriever (weights, prompts, budget); 16 hex digits."""
    committed: str
    """Time of the commit of this version, in ISO 8601, UTC."""
    checked_seconds_ago: float
    """Seconds since the server last checked for a newer version."""


class Word(Model):
    """A word of the vocabulary."""

    word: str
    weight: float | None
    """Weight of the word in the sparse vector, log(1 + logit); null if the vector does not contain it."""


class ReadWord(Model):
    """A word of the whole vocabulary that a slot predicts."""

    word: str
    logit: float
    """Logit of the word in the slot's prediction."""


Reading: TypeAlias = list[ReadWord]
"""The words that one vector predicts, strongest first; `Word`s are words of the text alone."""


class SlotMatch(Model):
    """A query slot and the passage slot that it matches under MaxSim."""

    slot: int
    """Number of the query slot, counted from 0."""
    words: list[Word]
    """Content words of the query that the slot predicts, strongest first."""
    passage_slot: int
    """Number of the passage slot with the largest product, counted from 0: an index into `passage_slots`."""
    passage_words: list[Word]
    """Content words of the passage that the passage slot predicts."""
    product: float
    """Inner product of the two vectors."""
    share: float | None
    """Share of the dense score, from 0 to 1; null if the score is 0."""


class TermMatch(Model):
    """A word that query and passage share."""

    word: str
    query_weight: float
    passage_weight: float
    product: float
    """Product of the two weights. The sparse score is the sum of these products."""
    share: float
    """Share of the sparse score, from 0 to 1."""


class Explanation(Model):
    """The slots and words behind the scores of one passage."""

    slots: list[SlotMatch]
    """The match of each query slot, by slot number. The dense score is the mean of their products."""
    passage_slots: list[list[Word]]
    """Content words that each passage slot predicts, by slot number."""
    terms: list[TermMatch]
    """Shared words, largest product first; empty if the retriever has no sparse score."""
    query_readings: list[Reading] = Field(default_factory=list)
    """Words of the whole vocabulary that each query slot predicts, by slot number; empty unless `words` is set."""
    passage_readings: list[Reading] = Field(default_factory=list)
    """The same for each passage slot."""
    query_parts: list[str] = Field(default_factory=list)
    """Part of the query that each slot pools from, by slot number; empty if slots pool from the whole text."""
    passage_parts: list[str] = Field(default_factory=list)
    """The same for title and text of the passage; also empty if slots were pruned."""


class SearchRequest(Model):
    """Body of `POST /search`."""

    query: Texts
    """One query, or a list of queries. A query cannot be blank."""
    k: Annotated[int, Field(gt=0, le=MOST_K)] = 10
    """Number of passages per query."""
    mode: Mode | None = None
    """Score to rank by: one that `GET /index` lists, or a weighted sum such as `dense+0.3bm25`. Default: `default_mode`
    of `GET /index`."""
    budget: RequestedBudget = None
    """Number of query slots, K_q: a number, or `adaptive` to choose it for each query. Default: the retriever's."""
    filter: Annotated[str, Field(max_length=MAX_FILTER_CHARS)] | None = None
    """Condition on metadata, `id` and `collection`, such as "year >= 2020 AND lang = 'en'". Dense, sparse and BM25
    scores do not change; sums such as `hybrid` are computed from the filtered result lists."""
    explain: bool = False
    """Return the slots and words behind each score."""
    words: Annotated[int, Field(ge=0, le=MOST_READ_WORDS)] = 0
    """With `explain`: number of predicted words of the whole vocabulary to return for each slot. Requires an index that
    is `readable`, and at most 20 passages (`k` times the number of queries)."""


class BudgetUsed(Model):
    """The number of slots of one query, and the reason for it."""

    slots: int | None
    """Number of query slots, K_q; null for retrievers without slots."""
    reason: Literal["request", "adaptive", "retriever", "load"]
    """`request`: set by the request. `adaptive`: chosen by the selector `rule`. `retriever`: the retriever's default.
    `load`: chosen or default, then lowered under load."""
    rule: str | None = None
    """Name of the selector that chose the number: `rule`, `fixed:4` or the name of a fitted selector."""
    allowed: tuple[int, ...] = ()
    """Numbers of slots that the selector chooses from, ascending."""
    features: dict[str, float] = Field(default_factory=dict)
    """Features of the query that the selector used, such as `length` in subwords and `entropy` in bits."""


class SearchHit(Model):
    """One passage of a ranking."""

    rank: int
    """Rank, counted from 1."""
    id: str
    title: str
    """May be empty."""
    text: str
    collection: str
    metadata: dict[str, Value | None] = Field(default_factory=dict)
    """Value of each metadata column, or null; dates and times in ISO 8601."""
    score: float
    """Score by the mode of the response."""
    scores: dict[Mode, float | None]
    """Score by the mode and, for a sum, by each of its result lists. Null if the passage is not in that list, which has
    the best 1000 passages, or fewer if the response is `reduced`."""
    explanation: Explanation | None = None


class QueryResult(Model):
    """The ranking of one query."""

    query: str
    budget: BudgetUsed
    hits: list[SearchHit]
    """Passages, best first; equal scores are in order of id. Fewer than `k` if the index or the filter has fewer."""


class SearchTimings(Model):
    """Milliseconds of each stage. Requests that are processed as one batch report the times of the batch."""

    choose: float
    """Choosing the number of query slots, and waiting for the batch."""
    encode: float
    search: float
    passages: float
    """Reading texts of passages, and explaining."""
    total: float


class Reduced(Model):
    """What the server reduced under load, within the bounds of its setting `load`."""

    query_slots: int | None
    """Maximum number of query slots, applied to queries with the reason `load`; null if there are none."""
    candidates: int | None
    """Maximum passages of each result list of a sum and of a candidate search; null if not reduced."""


class SearchResponse(Model):
    """Response to `POST /search`, read from one version of the index."""

    index: IndexState
    mode: Mode
    """Score that the passages are ranked by."""
    results: list[QueryResult]
    """The ranking of each query, in the order of the request."""
    timings_ms: SearchTimings
    missing_shards: tuple[int, ...] = ()
    """Numbers of the shards that did not respond, counted from 0; their passages are missing from the results. Always
    empty unless the server sets `shards_needed`."""
    reduced: Reduced | None = None
    """What was reduced because the server is under load. Null if nothing was reduced, which is always the case if the
    server does not set `load`."""


class EncodeRequest(Model):
    """Body of `POST /encode`."""

    query: Texts
    """One query, or a list of queries. A query cannot be blank."""
    budget: RequestedBudget = None
    """Number of query slots, K_q: a number, or `adaptive` to choose it for each query. Default: the retriever's."""


class EncodedSlot(Model):
    """One slot of a query."""

    words: list[Word]
    """Content words of the query that the slot predicts, strongest first."""
    vector: list[float]
    """Unit vector of the slot, as used in search (fp16 values)."""


class EncodedQuery(Model):
    """The representations of one query."""

    query: str
    budget: BudgetUsed
    slots: list[EncodedSlot]
    terms: list[Word]
    """Words and weights of the sparse vector, largest weight first."""


class EncodeResponse(Model):
    """Response to `POST /encode`."""

    fingerprint: str
    """Identifies the retriever, as in `GET /index`."""
    results: list[EncodedQuery]


class ServeLimits(Model):
    """Limits on requests."""

    max_query_chars: Annotated[PositiveInt, Field(le=MOST_QUERY_CHARS)] = 4000
    """Maximum characters of a query."""
    max_queries: Annotated[PositiveInt, Field(le=MOST_QUERIES)] = 64
    """Maximum queries of a request."""
    max_k: Annotated[PositiveInt, Field(le=MOST_K)] = 1000
    """Maximum passages per query (`k`)."""
    max_hits: PositiveInt = 10_000
    """Maximum passages of a response: `k` times the number of queries."""
    max_explained: PositiveInt = 200
    """Maximum passages of a response with `explain`."""
    max_budget: Annotated[PositiveInt, Field(le=MOST_BUDGET)] = 32
    """Maximum number of query slots, K_q."""
    max_passages: Annotated[PositiveInt, Field(le=MOST_PASSAGES)] = 256
    """Maximum passages of a `POST /passages` request."""
    max_passage_chars: Annotated[PositiveInt, Field(le=MOST_PASSAGE_CHARS)] = 100_000
    """Maximum characters of a passage, title and text together."""
    max_body_bytes: PositiveInt = 4 << 20
    """Maximum bytes of a request body."""
    body_s: PositiveFloat = 5.0
    """Seconds until a request body must have arrived; otherwise the server responds with status 408. The proxy gives
    the first 64 KiB five seconds."""
    timeout_s: PositiveFloat = 30.0
    """Maximum seconds of a request; then the server responds with status 503."""


class PartState(Model):
    """Size and search methods of one shard."""

    fragments: int
    """Number of fragments of the Lance table."""
    passages: int
    mapped_bytes: int
    """Bytes of the shard's 8-bit codes and postings."""
    candidates: int | None = None
    """Number of passages that the candidate index retrieves per query; null if all passages are scored."""
    search_methods: dict[EncodedList, Way]
    """Search method of each score, such as `codes`. Acceleration files that are built while the index is served are
    used from its next version on."""


class IndexResponse(Model):
    """Response to `GET /index`."""

    index: IndexState
    title: str
    """Short description of the retriever: method, backbone and budget."""
    method: str
    """Method: `masked`, `generated`, `pooled`, `tokens`, `library`, or the name of an installed encoder."""
    modes: list[Mode]
    """Scores of the retriever, as values of `mode`."""
    default_mode: Mode
    """Score that ranks if a request sets no `mode`."""
    further_modes: list[Mode] = Field(default_factory=list)
    """Further values of `mode`: BM25, and sums with it. The first such query after a change can be slow."""
    query_budget: int | None
    """Default number of query slots, K_q; null if the retriever has no query budget."""
    passage_budget: int
    """Maximum number of vectors per passage, K_p."""
    readable: bool = False
    """Whether requests can set `words`."""
    adaptive: str | None
    """Name of the selector of `budget: adaptive`; null if the retriever has no slots."""
    collections: dict[str, int]
    """Number of passages by collection."""
    metadata: Columns = Field(default_factory=dict)
    """Metadata columns and their types. Filters can also use `id` and `collection`."""
    parts: list[PartState] = Field(default_factory=list)
    """State of each shard, by shard number; a single entry if the index is not sharded."""
    limits: ServeLimits


class PassageIn(Model):
    """A passage to add. It replaces the passage with the same id."""

    id: Name
    """Unique id, without whitespace or control characters."""
    title: _Text = ""
    text: _Text = ""
    """Title and text cannot both be empty."""
    collection: Name = Field(default="served", min_length=1)
    metadata: dict[Name, Value | None] = Field(default_factory=dict, max_length=MOST_FIELDS, fail_fast=True)
    """Values of columns that `GET /index` lists under `metadata`; dates and times in ISO 8601."""


class IngestRequest(Model):
    """Body of `POST /passages`. Either all passages are written, or none."""

    passages: list[PassageIn] = Field(min_length=1, max_length=MOST_PASSAGES, fail_fast=True)
    """Passages with different ids."""


class IngestResponse(Model):
    """Response to `POST /passages`."""

    added: int
    """Number of passages with new ids."""
    replaced: int
    """Number of passages that replaced one with the same id."""
    unchanged: int
    """Number of passages that the index already contained with the same content."""
    version: int
    """First version of the index that contains all of them. This replica searches it at once, other replicas within
    seconds."""


class DeleteResponse(Model):
    """Response to `DELETE /passages/{id}`."""

    deleted: int
    """Number of deleted passages: 1. An unknown id is a problem with status 404."""
    version: int
    """First version of the index without the passage."""


class Health(Model):
    """Response to `GET /healthz` and `GET /readyz`."""

    status: Literal["ok"]


class Problem(Model):
    """Body of every response with a status of 400 or more (RFC 9457, `application/problem+json`)."""

    type: str
    """Identifier of the kind of problem, for programs: `urn:diffretriever:problem:KIND`."""
    title: str
    """Description of the kind of problem."""
    status: int
    detail: str
    """What is wrong with this request."""
    field: str | None = None
    """Field of the request, such as `budget` or `query.3` (list items count from 0)."""
    fix: str
    """What to do."""
    instance: str
    """Path of the request."""
