"""Search of documents by their chunks: searches deeper until the best documents are certain.

Results equal scoring all chunks. Every round that is uncertain is repeated in two halves of its queries at twice the
depth, so memory stays the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import pyarrow.compute as pc

from diffretriever.collections.chunks import CHUNK_ID
from diffretriever.index.filters import condition_of
from diffretriever.index.order import PassageOrder
from diffretriever.schemas.documents import FIRST, DocumentScore, chunks_averaged
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.mode import Mode
from diffretriever.vectors.documents import DocumentHits, Documents, rank_documents
from diffretriever.vectors.hits import Hits

_FIRST_CHUNKS = f"(NOT regexp_like(id, '{CHUNK_ID.pattern}') OR id LIKE '%#1')"
_CHUNKS_PER_DOCUMENT = 2
"""Initial depth per requested document."""


class Round(NamedTuple):
    """A search of some queries."""

    start: int
    stop: int
    """Queries from `start` to `stop`, exclusive."""
    depth: int
    """Passages per query."""


def search_condition(text: str | None, columns: Columns, documents: DocumentScore | None) -> str | None:
    """Return the condition on the searched passages in Lance's SQL; None for all. Raises as `condition_of`."""
    conditions = [] if text is None else [condition_of(text, columns)]
    if documents == FIRST:
        conditions.append(_FIRST_CHUNKS)
    return " AND ".join(conditions) or None


def documents_of(order: PassageOrder) -> Documents:
    """Group the passages of an index version by document: chunks `ID#N` belong to `ID`."""
    return Documents.of(pc.replace_substring_regex(order.passages.ids, CHUNK_ID.pattern, ""))


def search_documents(
    search: Callable[[Round], dict[Mode, Hits]], queries: int, documents: Documents, score: DocumentScore, k: int
) -> dict[Mode, Hits]:
    """Return, per mode, the best `k` documents of each query.

    `search` returns passages, numbered as in `documents`.
    """
    averaged, everything = chunks_averaged(score), int(documents.counts_D.sum()) + 1
    pending, parts = [Round(0, queries, _CHUNKS_PER_DOCUMENT * k)], defaultdict[Mode, list[DocumentHits]](list)
    while pending:
        part = pending.pop()
        ranked = {
            mode: rank_documents(hits, documents, averaged=averaged, k=k, depth=part.depth)
            for mode, hits in search(part).items()
        }
        certain = {mode: hits for mode, hits in ranked.items() if hits is not None}
        if len(certain) == len(ranked):
            for mode, hits in certain.items():
                parts[mode].append(hits)
            continue
        depth, middle = min(2 * part.depth, everything), (part.start + part.stop) // 2
        # The earlier half comes next, so parts are in the order of the queries.
        halves = [Round(middle, part.stop, depth), Round(part.start, middle, depth)]
        pending += [half for half in halves if half.start < half.stop]
    return {mode: DocumentHits.joined(joined) for mode, joined in parts.items()}
