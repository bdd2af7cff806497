"""Splits long documents into passages, at paragraphs or sentences where these fit.

A short document `ID` stays one passage. The chunks of a longer one are `ID#1`, `ID#2`, …, each with the document's
title. Chunking is deterministic, because resuming and syncing compare chunk ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from diffretriever.collections.base import Collection, TransformedCollection
from diffretriever.collections.records import BadRecord, Part, Passage, Reading

CHUNK_ID = re.compile(r"#[0-9]+$")
"""Suffix of a chunk's id."""


def first_chunk(document: str) -> str:
    """Return the id of a document's first chunk."""
    return f"{document}#1"


class ChunkedCollection(TransformedCollection):
    """Another collection in chunks. Markdown is split by its structure, other text by paragraphs and sentences."""

    def __init__(self, whole: Collection, tokens: int, count: Callable[[str], int]) -> None:
        """Wrap a collection without reading it.

        Args:
            whole: the documents.
            tokens: maximum tokens of a passage with its title, which takes at most half of them.
            count: returns the number of tokens of a text; picklable.
        """
        self.source, self.tokens = whole, tokens
        self._count = count

    def read(self, part: Part) -> Reading:
        """Read a part; chunks have the line number of their document."""
        reading = self.source.read(part)
        blocks = ([(line, chunk) for line, doc in block for chunk in self._chunks(doc)] for block in reading.blocks)
        return replace(reading, blocks=blocks)

    def _chunks(self, record: Passage | BadRecord) -> Iterator[Passage | BadRecord]:
        if isinstance(record, BadRecord):
            yield record
            return
        # Some retrievers join title and text with a full stop.
        prefix = f"{record.title}. " if record.title else ""
        if self._count(prefix + record.text) <= self.tokens:
            yield record
            return
        from semantic_text_splitter import MarkdownSplitter

        capacity = max(self.tokens - self._count(prefix), self.tokens // 2, 1)
        chunks = MarkdownSplitter.from_callback(self._count, capacity).chunks(record.text)
        for number, text in enumerate(chunks, start=1):
            yield replace(record, id=f"{record.id}#{number}", text=text)
