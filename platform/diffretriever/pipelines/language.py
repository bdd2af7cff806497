"""Sets the language of a retriever to that of the passages that it encodes."""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

from diffretriever.collections import Collection, Passage
from diffretriever.encoders.words import in_language
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.retriever import RetrieverBase

R = TypeVar("R", bound=RetrieverBase)

_PASSAGES = 300
_CHARACTERS = 2000


def in_language_of(collection: Collection, retriever: R, choice: str, index: str | None = None) -> R:
    """Return the retriever with the language of a collection; see `in_language`.

    Args:
        collection: its first passages show the script.
        retriever: the retriever.
        choice: an ISO 639-1 code or `auto`.
        index: an index whose language counts, if it exists.
    """
    records = islice(collection.records(), _PASSAGES)
    texts = (f"{record.title} {record.text}"[:_CHARACTERS] for record in records if isinstance(record, Passage))
    is_begun = index is not None and PassageIndex.exists(index)
    stated = PassageIndex.open(index).manifest.retriever.language if index and is_begun else collection.language
    return in_language(retriever, choice, texts, stated)
