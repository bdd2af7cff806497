"""How many of an index's passages hold each word: what features of queries by rarity are made of."""

from __future__ import annotations

from collections.abc import Iterator

from diffretriever.budgets.features import DocumentFrequencies, count_documents
from diffretriever.index.table import PassageIndex

_BATCH_ROWS = 4096


def document_frequencies(index: PassageIndex) -> DocumentFrequencies:
    """Count the words of all passages, in one pass over their titles and texts."""
    return count_documents(_texts(index))


def _texts(index: PassageIndex) -> Iterator[str]:
    for batch in index.batches(["title", "text"], _BATCH_ROWS):
        for title, text in zip(batch.column("title").to_pylist(), batch.column("text").to_pylist(), strict=True):
            yield f"{title} {text}"
