"""Training examples: a query with its judged passages, parsed from a record and checked.

Texts with equal keys, that is, equal up to case and whitespace, count as the same text.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from diffretriever.collections import BadRecord, Collection
from diffretriever.collections.records import (
    ID_FIELDS,
    QUERY_ID_FIELDS,
    TEXT_FIELDS,
    Passage,
    RefusedError,
    checked_passage,
    checked_query,
)

_POSITIVES = ("positive_passages", "positives", "positive")
_NEGATIVES = ("negative_passages", "negatives", "negative")
_LIKE_PASSAGES = re.compile("negative|positive|(^|[^a-z])(neg|pos([^a-z]|$))", re.IGNORECASE)
"""Names of fields that may contain passages or their scores."""


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its judged passages: at least one positive, and no id or text twice."""

    query_id: str
    query: str
    positives: tuple[Passage, ...]
    """Passages that answer the query."""
    negatives: tuple[Passage, ...]
    """Hard negatives, best first if they were mined; may be empty."""


@dataclass(frozen=True, slots=True)
class Group:
    """A query with its candidates in one step."""

    query_id: str
    query: str
    passages: tuple[Passage, ...]
    """The positive, then the negatives."""
    answers: tuple[int, ...] = ()
    """`passage_key` of all passages known to answer the query; the positive may be missing."""


class Checked(NamedTuple):
    """A valid example."""

    example: Example
    repeated: int
    """Number of repeated passages that were removed from the record."""


def example_from_json(line: str) -> Checked:
    """Parse a JSON object; see `example_from_fields`. Raises `RefusedError`."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"malformed JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RefusedError("not an object: the line is another JSON value")
    return example_from_fields(fields)


def example_from_tsv(line: str) -> Checked:
    """Parse `query<TAB>positive[<TAB>negative …]`; ids are made from the contents. Raises `RefusedError`."""
    columns = line.split("\t")
    if len(columns) < 2:
        raise RefusedError("wrong column count: 1 instead of 2 or more (query, tab, positive, tab, negatives)")
    return example_from_fields({"query": columns[0], "positives": columns[1:2], "negatives": columns[2:]})


def example_from_fields(fields: dict[str, Any]) -> Checked:
    """Parse a record in Tevatron's layout or with plain texts; null fields count as missing.

    Query: `query`, and an id in one of `QUERY_ID_FIELDS`. Passages: `positive_passages`, `positives` or `positive`, and
    `negative_passages`, `negatives` or `negative`. A passage is a text, or an object with `text`, `title` and an id in
    one of `ID_FIELDS`. Missing ids are made from the contents. Repeated passages, by id or `passage_key`, are removed.

    Raises:
        RefusedError: The record is invalid, or has an unknown field named like passages, such as `hard_negatives`.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    _refuse_unread_passages(fields)
    positives = list(_passages(fields, _POSITIVES))
    if not positives:
        raise RefusedError(f"no positive: add one in {', '.join(_POSITIVES)}")
    negatives = list(_passages(fields, _NEGATIVES))
    seen: set[str | int] = set()
    kept_positives, kept_negatives = _without_repeated(positives, seen), _without_repeated(negatives, seen)
    query_id, query = _query(fields, kept_positives)
    repeated = len(positives) + len(negatives) - len(kept_positives) - len(kept_negatives)
    return Checked(Example(query_id, query, kept_positives, kept_negatives), repeated)


def _refuse_unread_passages(fields: dict[str, Any]) -> None:
    read = [next((name for name in names if name in fields), None) for names in (_POSITIVES, _NEGATIVES)]
    for name, value in fields.items():
        if name not in read and _LIKE_PASSAGES.search(name) and not isinstance(value, int | float):
            known = ", ".join((*_POSITIVES, *_NEGATIVES))
            raise RefusedError(f"unknown field: '{name}' is ignored: rename it to one of {known}, or remove it")


def _passages(fields: dict[str, Any], names: tuple[str, ...]) -> Iterator[Passage]:
    name = next((name for name in names if name in fields), None)
    if name is None:
        return
    value = fields[name]
    for number, item in enumerate(value if isinstance(value, list) else [value]):
        field = f"{name}[{number}]" if isinstance(value, list) else name
        try:
            yield _passage(item)
        except RefusedError as refused:
            raise RefusedError(f"{refused} (in {field})") from refused


def _passage(item: Any) -> Passage:
    fields = {"text": item} if isinstance(item, str) else item
    if not isinstance(fields, dict):
        raise RefusedError("wrong type: neither a text nor an object")
    title = _string("title", fields.get("title") or "")
    name = next((name for name in TEXT_FIELDS if fields.get(name) is not None), None)
    if name is None:
        raise RefusedError(f"no text field: none of {', '.join(TEXT_FIELDS)}")
    text = _string(name, fields[name])
    passage_id = _id(fields, ID_FIELDS)
    if passage_id is None:
        contents = f"{title}\x1f{text}".encode("utf-8", "surrogatepass")
        passage_id = "p" + hashlib.blake2b(contents, digest_size=8).hexdigest()
    return checked_passage(passage_id, title, text)


def _query(fields: dict[str, Any], positives: Sequence[Passage]) -> tuple[str, str]:
    if "query" not in fields:
        raise RefusedError("no query field: 'query' is missing")
    text = _string("query", fields["query"])
    query_id = _id(fields, QUERY_ID_FIELDS)
    if query_id is None:
        parts = "\x1f".join([text, *(passage.id for passage in positives)])
        query_id = "q" + hashlib.blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    query = checked_query(query_id, text)
    return query.id, query.text


def _id(fields: dict[str, Any], names: tuple[str, ...]) -> str | None:
    name = next((name for name in names if fields.get(name) is not None), None)
    if name is None:
        return None
    value = fields[name]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _string(name, value)


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RefusedError(f"wrong type: '{name}' is not a string")
    return value


def _without_repeated(passages: list[Passage], seen: set[str | int]) -> tuple[Passage, ...]:
    kept = []
    for passage in passages:
        key = passage_key(passage)
        if passage.id not in seen and key not in seen:
            kept.append(passage)
            seen |= {passage.id, key}
    return tuple(kept)


def passage_key(passage: Passage) -> int:
    """Return the key of the passage's text, or of its title if the text is empty.

    The title is ignored otherwise, because not all collections have titles.
    """
    return text_key(passage.text if passage.text.strip() else passage.title)


def text_key(text: str) -> int:
    """Return the 64-bit BLAKE2b hash of the text after NFKC, case folding and whitespace normalisation."""
    normal = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(hashlib.blake2b(normal.encode(), digest_size=8).digest(), "little")


def keys_of(collections: Iterable[Collection]) -> np.ndarray:
    """Return the distinct keys of all passages and queries, uint64, ascending."""
    keys: list[np.ndarray] = [np.empty(0, np.uint64)]
    for collection in collections:
        passages = (record for record in collection.records() if not isinstance(record, BadRecord))
        keys.append(np.fromiter((passage_key(passage) for passage in passages), np.uint64))
        queries = (query for split in collection.splits() for query in collection.queries(split))
        keys.append(np.fromiter((text_key(query.text) for query in queries), np.uint64))
    return np.unique(np.concatenate(keys))


def are_in(keys: Iterable[int], known: np.ndarray) -> np.ndarray:
    """Return a bool array: whether each key is in `known` (ascending uint64)."""
    keys_n = np.fromiter(keys, np.uint64)
    return np.searchsorted(known, keys_n, "right") > np.searchsorted(known, keys_n, "left")
