"""What goes over HTTP: requests, answers and problems of the search application. The config is `schemas.serve_config`.

Unknown keys of a request are refused. Limits on lengths and counts are the server's, and `GET /index` says them. The
types here bound what any server can allow, so that a request can hold only a few mistakes before it is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.mode import EncodedList, Mode, Way

MOST_QUERIES = 1000
MOST_QUERY_CHARS = 100_000
MOST_K = 100_000
MOST_BUDGET = 1000
MOST_PASSAGES = 10_000
MOST_PASSAGE_CHARS = 10_000_000
MOST_FIELDS = 1000
"""Further fields of a passage."""
MOST_NAME_CHARS = 4096
"""Of an id, a collection's name or a further field's."""

_Query: TypeAlias = Annotated[str, Field(max_length=MOST_QUERY_CHARS)]
Texts: TypeAlias = Annotated[list[_Query], Field(max_length=MOST_QUERIES, fail_fast=True)] | _Query
"""One query, or several that are answered together."""

AskedBudget: TypeAlias = Literal["adaptive"] | Annotated[int, Field(gt=0, le=MOST_BUDGET)] | None
"""K_q: a number for all queries, `adaptive` to have each query's chosen from its text, None for the retriever's own."""

Name: TypeAlias = Annotated[str, Field(max_length=MOST_NAME_CHARS)]
"""Of a passage, that is its id, or of a collection."""
_Text: TypeAlias = Annotated[str, Field(max_length=MOST_PASSAGE_CHARS)]
Value: TypeAlias = bool | int | float | _Text
"""Of a further field."""


class IndexState(Model):
    """The one version of the index that an answer comes from."""

    name: str
    """Last part of the index's place."""
    version: int
    rows: int
    """Passages in it."""
    fingerprint: str
    """Of the retriever: 16 hex digits that differ wherever a vector could."""
    committed: str
    """ISO 8601 time, UTC, at which this version came to be."""
    checked_seconds_ago: float
    """Seconds since the server last looked for a newer version."""


class Word(Model):
    """An entry of the vocabulary as text."""

    word: str
    weight: float | None
    """Its impact in the text that it is of, log(1 + logit); None where the sparse side does not keep it."""


class ReadWord(Model):
    """A word of the whole vocabulary that a vector says."""

    word: str
    logit: float
    """What the backbone's output head gives it at a final state in the vector's direction."""


Reading: TypeAlias = list[ReadWord]
"""What one vector says, strongest first: the slot's prediction in any words, where `Word`s are of the text alone."""
READ_WORDS = 8
"""Words of a reading where nobody says how many."""
MOST_READ_WORDS = 50
MOST_READ_PASSAGES = 20
"""Passages of a request whose vectors are read as words: each slot takes a product with the whole output head."""


class SlotMatch(Model):
    """A query slot and the passage slot nearest to it (MaxSim)."""

    slot: int
    """Number of the query slot, from 0."""
    words: list[Word]
    """What the query slot predicts, strongest first; of the query's own content words."""
    passage_slot: int
    """Number of the passage slot with the largest product, from 0; the first of equals."""
    passage_words: list[Word]
    """What that predicts, of the passage's own content words."""
    product: float
    """Inner product of the two vectors."""
    share: float | None
    """Part of the dense score that comes from this slot; all shares add up to 1. None where the score is 0."""


class TermMatch(Model):
    """A word that query and passage share."""

    word: str
    query_weight: float
    passage_weight: float
    product: float
    """Of the two weights; all products add up to the sparse score."""
    share: float
    """Part of the sparse score."""


class Explanation(Model):
    """What the scores of one passage are made of."""

    slots: list[SlotMatch]
    """One for each query slot, in their order; the mean of their products is the dense score."""
    passage_slots: list[list[Word]]
    """The words of every slot of the passage, matched or not."""
    terms: list[TermMatch]
    """Largest product first; empty without a sparse side."""
    query_readings: list[Reading] = Field(default_factory=list)
    """What every slot of the query says in words of the whole vocabulary; empty where no such words were asked for."""
    passage_readings: list[Reading] = Field(default_factory=list)
    """The same of every slot of the passage."""
    query_parts: list[str] = Field(default_factory=list)
    """The part of the query's text that each of its slots reads; empty where slots read the whole text."""
    passage_parts: list[str] = Field(default_factory=list)
    """The same of the passage, title included; empty too where it has fewer slots than it was encoded with."""


MAX_FILTER_CHARS = 4000


class Filter(Model):
    """A filter by collection alone."""

    collection: Name
    """Only passages of this collection; `GET /index` names them all."""


class SearchRequest(Model):
    """Body of `POST /search`."""

    query: Texts
    """One query, or a list of them; none blank."""
    k: Annotated[int, Field(gt=0, le=MOST_K)] = 10
    """Passages wanted for each query."""
    mode: Mode | None = None
    """Score to rank by, one of those that `GET /index` names, or a sum of them with weights such as dense+0.3bm25;
    default: its `default_mode`."""
    budget: AskedBudget = None
    """K_q, the slots of each query; retrievers without slots take none."""
    filter: Annotated[str, Field(max_length=MAX_FILTER_CHARS)] | Filter | None = None
    """Search among the passages that meet a condition, such as "year >= 2020 AND lang = 'en'", or that are of one
    collection. Dense, sparse and BM25 scores stay what they are without it; sums such as hybrid are made of the
    lists that are left."""
    explain: bool = False
    """Also say, for each passage, which slots and words its scores are made of."""
    words: Annotated[int, Field(ge=0, le=MOST_READ_WORDS)] = 0
    """With `explain`: how many words of the whole vocabulary to give for each slot, of queries and passages. For
    indexes that are `readable`, and at most 20 passages, `k` times the queries."""


class BudgetUsed(Model):
    """The K_q of one query, and why."""

    slots: int | None
    """K_q; None for retrievers without slots."""
    reason: Literal["asked", "adaptive", "retriever", "load"]
    """`asked`: the number in the request; `adaptive`: chosen by `rule`; `retriever`: the retriever's own; `load`: one
    of the last two, lowered because many requests wait."""
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
    metadata: dict[str, Value | None] = Field(default_factory=dict)
    """Its further fields that the index keeps, null where it has none; times as ISO 8601 has them."""
    score: float
    """By the mode of the answer."""
    scores: dict[Mode, float | None]
    """Every score known: that of the mode, and where it is a sum the scores of its lists (of hybrid the dense and the
    sparse one), None where the passage is not among the 1000 best by it, or as many as the answer was reduced to (the
    sum then counts 0)."""
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


class Reduced(Model):
    """What a busy server has lowered for an answer, within its own bounds; see `load` of the server's settings."""

    query_slots: int | None
    """The most that K_q could be; results whose budget has the reason `load` have it. None: none was lowered."""
    candidates: int | None
    """Passages of each list that was summed, and at most those that a candidate index named. None: as many as ever."""


class SearchResponse(Model):
    """Answer of `POST /search`: all of it from one version of the index."""

    index: IndexState
    mode: Mode
    results: list[QueryResult]
    """One for each query, in their order."""
    timings_ms: SearchTimings
    missing_shards: tuple[int, ...] = ()
    """Shards of the index that did not answer, numbered from 0: their passages were not searched by vectors and
    impacts. Always empty unless the server's `shards_needed` allows it."""
    reduced: Reduced | None = None
    """What was lowered because many requests wait; None: nothing, as on every server that does not state bounds."""


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


class ServeLimits(Model):
    """What a server takes; more is refused with a problem that names the field."""

    max_query_chars: Annotated[PositiveInt, Field(le=MOST_QUERY_CHARS)] = 4000
    """Characters of one query."""
    max_queries: Annotated[PositiveInt, Field(le=MOST_QUERIES)] = 64
    """Queries of one request."""
    max_k: Annotated[PositiveInt, Field(le=MOST_K)] = 1000
    """Passages of a ranking."""
    max_hits: PositiveInt = 10_000
    """Passages of an answer: `k` times the queries."""
    max_explained: PositiveInt = 200
    """The same of an answer with explanations."""
    max_budget: Annotated[PositiveInt, Field(le=MOST_BUDGET)] = 32
    """Largest K_q that a request may ask for."""
    max_passages: Annotated[PositiveInt, Field(le=MOST_PASSAGES)] = 256
    """Passages of one ingest."""
    max_passage_chars: Annotated[PositiveInt, Field(le=MOST_PASSAGE_CHARS)] = 100_000
    """Characters of title and text of one passage."""
    max_body_bytes: PositiveInt = 4 << 20
    """Bytes of a request's body."""
    body_s: PositiveFloat = 5.0
    """Seconds in which a request's body must arrive; after them it is answered with status 408. Its first 64 KiB have
    five in any case, where serve/front.py stands before Ray's proxies."""
    timeout_s: PositiveFloat = 30.0
    """Seconds for one request; after them it is answered with status 503."""


class PartState(Model):
    """What one shard holds of the version that is searched."""

    fragments: int
    passages: int
    mapped_bytes: int
    """Size of the codes and postings that it searches by, which its machine has on disk and maps into memory."""
    candidates: int | None = None
    """Passages that its candidate index names for each query; None where all are scored."""
    found_by: dict[EncodedList, Way]
    """How passages are found for each score that the retriever makes."""


class IndexResponse(Model):
    """Answer of `GET /index`."""

    index: IndexState
    title: str
    """The retriever for people: method, backbone and budget."""
    method: str
    """`masked`, `generated`, `pooled`, `tokens`, `library`, or the name of an installed encoder."""
    modes: list[Mode]
    """Scores that the retriever makes."""
    default_mode: Mode
    """What a query without a mode is ranked by."""
    further_modes: list[Mode] = Field(default_factory=list)
    """Scores offered besides: BM25 of the texts, and sums with it. The first such question after a change of the index
    may have to wait until the words of all texts are counted anew."""
    query_budget: int | None
    """The retriever's own K_q; None where queries have no budget."""
    passage_budget: int
    """K_p, most vectors of a passage."""
    readable: bool = False
    """Whether explanations can say what slots mean in `words` of the whole vocabulary."""
    adaptive: str | None
    """What `budget: adaptive` is chosen by; None where it is not offered."""
    collections: dict[str, int]
    """Passages by collection."""
    metadata: Columns = Field(default_factory=dict)
    """Further fields that the index keeps, and their types: what a filter can name, beside `id` and `collection`."""
    found_by: dict[EncodedList, list[Way]]
    """How passages are found for each score that the retriever makes; in several ways where shards differ. What is made
    beside the index while it is served is used from the next version on."""
    parts: list[PartState] = Field(default_factory=list)
    """What each shard holds, in the order of their numbers; one part where the index is not cut."""
    limits: ServeLimits


class PassageIn(Model):
    """A passage to add, or to put in place of the one with its id."""

    id: Name
    """Without whitespace or control characters."""
    title: _Text = ""
    text: _Text = ""
    """Title or text may be empty, not both."""
    collection: Name = Field(default="served", min_length=1)
    """What a filter can name it by."""
    metadata: dict[Name, Value | None] = Field(default_factory=dict, max_length=MOST_FIELDS, fail_fast=True)
    """Values of the columns that `GET /index` names under `metadata`; days and times as ISO 8601 has them."""


class IngestRequest(Model):
    """Body of `POST /passages`: written in one step, or not at all."""

    passages: list[PassageIn] = Field(min_length=1, max_length=MOST_PASSAGES, fail_fast=True)
    """No id twice."""


class IngestResponse(Model):
    """Answer of `POST /passages`."""

    added: int
    replaced: int
    """Those whose id was there with another title, text, collection or metadata."""
    unchanged: int
    """Those that were there as they are."""
    version: int
    """First version of the index with all of them; later searches on this replica are answered from it or a newer
    one, other replicas follow within seconds."""


class DeleteResponse(Model):
    """Answer of `DELETE /passages/{id}`."""

    deleted: int
    """1; a passage that is not there is a problem of status 404."""
    version: int
    """First version of the index without it."""


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
