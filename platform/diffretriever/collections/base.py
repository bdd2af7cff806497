"""What a collection is: passages to index, queries and relevance judgements to evaluate with."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.places import StorePath

Qrels = dict[str, dict[str, int]]
"""Query id → passage id → relevance."""

Run = dict[str, dict[str, float]]
"""Query id → passage id → score."""


class BadInputError(ValueError):
    """Records of a collection cannot be used; the message lists the first ones and says how to go on."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to retrieve. The id is without whitespace; title or text may be blank, not both."""

    id: str
    title: str
    text: str

    @property
    def digest(self) -> bytes:
        """BLAKE2b-128 of title, unit separator and text: equal digests mean an unchanged passage."""
        return hashlib.blake2b(f"{self.title}\x1f{self.text}".encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Query:
    """A text to search with."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be used: where it is, why, and how it begins.

    `line` counts from 1, `raw` is at most 200 characters. `reason` is `kind` or `kind: detail`.
    """

    file: str
    line: int
    reason: str
    raw: str

    @property
    def kind(self) -> str:
        """The reason without its detail, to count by."""
        return self.reason.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class Collection(ABC):
    """Passages with, per split, queries and judgements. Picklable; opening one reads no passage."""

    name: str

    @abstractmethod
    def records(self) -> Iterator[Passage | BadRecord]:
        """Stream every record in a fixed order, each checked by itself (see `scan` for duplicate ids)."""

    def located_records(self) -> Iterator[tuple[str, int, Passage | BadRecord]]:
        """Yield `records()` with file and line of each; without lines, the name and the record's number."""
        for number, record in enumerate(self.records(), start=1):
            yield self.name, number, record

    @abstractmethod
    def splits(self) -> list[str]:
        """Return the names of the splits that have queries and judgements, sorted."""

    @abstractmethod
    def queries(self, split: str) -> list[Query]:
        """Return the queries judged in the split, in file order.

        Raises:
            ValueError: There is no such split, or a line is malformed (the message names file and line).
        """

    @abstractmethod
    def qrels(self, split: str) -> Qrels:
        """Return the split's relevance judgements.

        Raises:
            ValueError: There is no such split, or a line is malformed (the message names file and line).
        """

    @abstractmethod
    def source_state(self) -> str:
        """Return a short string that changes when the file behind `records()` changes."""

    def inputs(self) -> list[Path | StorePath]:
        """Return the files that are read and that no job may write to."""
        return []

    def place(self) -> str:
        """Return what tells this collection from others of its name: where it lies, or the name where that is all."""
        return self.name
