"""A collection whose long documents are several passages each: chunks of whole paragraphs or sentences, where they fit.

A document `ID` that is short enough stays one passage and keeps its id; the chunks of a longer one are `ID#1`, `ID#2`
and so on, each with the document's title. So the document's id is what stands before the last `#`. The same documents
give the same chunks every time, which is what resuming and syncing go by.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from diffretriever.collections.base import Collection, CollectionOver
from diffretriever.collections.records import BadRecord, Part, Passage, Reading

CHUNK_ID = re.compile(r"#[0-9]+$")
"""What the id of a chunk has after its document's."""


class ChunkedCollection(CollectionOver):
    """Another collection in chunks. Markdown is divided by its structure; other text has paragraphs and sentences."""

    def __init__(self, whole: Collection, tokens: int, count: Callable[[str], int]) -> None:
        """Read nothing yet.

        Args:
            whole: the documents.
            tokens: most tokens of a passage, its title included. Of these a long title takes half at the most.
            count: returns the tokens of a text; picklable.
        """
        self.source, self.tokens = whole, tokens
        self._count = count

    def records(self) -> Iterator[Passage | BadRecord]:
        """Stream the chunks of each document in turn."""
        return (chunk for record in self.source.records() for chunk in self._chunks(record))

    def read(self, part: Part) -> Reading:
        """Read a part; all chunks of a document are on its line."""
        reading = self.source.read(part)
        blocks = ([(line, chunk) for line, each in block for chunk in self._chunks(each)] for block in reading.blocks)
        return replace(reading, blocks=blocks)

    def _chunks(self, record: Passage | BadRecord) -> Iterator[Passage | BadRecord]:
        if isinstance(record, BadRecord):
            yield record
            return
        # The full stop is what some retrievers write between the two.
        before = f"{record.title}. " if record.title else ""
        if self._count(before + record.text) <= self.tokens:
            yield record
            return
        from semantic_text_splitter import MarkdownSplitter

        room = max(self.tokens - self._count(before), self.tokens // 2, 1)
        chunks = MarkdownSplitter.from_callback(self._count, room).chunks(record.text)
        for number, text in enumerate(chunks, start=1):
            yield replace(record, id=f"{record.id}#{number}", text=text)
