"""The calls that the service knows: where each goes, what it carries, what answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

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

Answer = TypeVar("Answer", bound=BaseModel)
Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request.

    Attributes:
        method: of HTTP.
        path: below the service's address, without a slash in front.
        answer: what a successful answer is.
        body: sent as JSON, where there is one.
        reads: whether it changes nothing, so that it may be sent again when it is not known to have arrived.
    """

    method: str
    path: str
    answer: type[Answer]
    body: BaseModel | None = None
    reads: bool = True

    @property
    def content(self) -> bytes | None:
        """The body's bytes: only what differs from the defaults."""
        return None if self.body is None else self.body.model_dump_json(exclude_defaults=True).encode()


def search(
    query: Texts,
    *,
    k: int,
    mode: Mode | None,
    budget: AskedBudget,
    collection: str | None,
    filter: str | None,  # noqa: A002 (what everybody calls it)
    explain: bool,
    words: int,
) -> Call[SearchResponse]:
    """Return the call of a search.

    Args:
        query: one query or several.
        k: passages wanted for each.
        mode: score to rank by; None for the service's default.
        budget: K_q, or how it is chosen.
        collection: name of the collection to search in; None: all of them.
        filter: condition on metadata; None: none.
        explain: whether explanations are wanted.
        words: of the whole vocabulary, wanted for each slot in an explanation.

    Raises:
        ValueError: a value that no service would take.
    """
    if collection is not None and filter is not None:
        raise ValueError(f"give collection or filter, not both: a filter can say (…) AND collection = '{collection}'")
    chosen = filter if collection is None else _body(Filter, collection=collection)
    body = _body(SearchRequest, query=query, k=k, mode=mode, budget=budget, filter=chosen, explain=explain, words=words)
    return Call("POST", "search", SearchResponse, body)


def encode(query: Texts, *, budget: AskedBudget) -> Call[EncodeResponse]:
    """Return the call that asks for queries' vectors and terms; `ValueError` for what no service would take."""
    return Call("POST", "encode", EncodeResponse, _body(EncodeRequest, query=query, budget=budget))


def index() -> Call[IndexResponse]:
    """Return the call that asks what is served."""
    return Call("GET", "index", IndexResponse)


def add(passages: Sequence[PassageIn]) -> Call[IngestResponse]:
    """Return the call that adds or replaces passages; `ValueError` if there are none."""
    return Call("POST", "passages", IngestResponse, _body(IngestRequest, passages=list(passages)), reads=False)


def delete(passage_id: str) -> Call[DeleteResponse]:
    """Return the call that deletes one passage, whatever characters its id has."""
    return Call("DELETE", f"passages/{quote(passage_id, safe='')}", DeleteResponse, reads=False)


def _body(kind: type[Body], **fields: Any) -> Body:
    """Return a body; raise `ValueError`, with the field and the fix, where it cannot be."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ValueError("; or: ".join(mistakes(error))) from None
