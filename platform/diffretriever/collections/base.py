"""What a collection is: passages to index, queries and relevance judgements to evaluate with."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from diffretriever.collections.customs import excludes_self
from diffretriever.schemas.metadata import Scalar
from diffretriever.schemas.places import StorePath

_SEPARATOR = "\x1f"

Qrels = dict[str, dict[str, int]]
"""Query id → passage id → relevance."""


class BadInputError(ValueError):
    """Records of a collection cannot be used; the message lists the first ones and says how to go on."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to retrieve. The id is without whitespace; title or text may be blank, not both."""

    id: str
    title: str
    text: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """What an index keeps of the record's further fields, in the types of its columns."""
    further: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False, repr=False)
    """All of the record's further fields, as they were read."""

    @property
    def digest(self) -> bytes:
        """BLAKE2b-128 of title, unit separator and text, then of metadata: equal ones mean an unchanged passage."""
        contents = f"{self.title}{_SEPARATOR}{self.text}"
        # Only then may the same contents be another title and text.
        person = str(len(self.title)).encode() if contents.count(_SEPARATOR) > 1 else b""
        of_texts = hashlib.blake2b(contents.encode(), digest_size=16, person=person).digest()
        if not self.metadata:
            return of_texts
        values = json.dumps(self.metadata, sort_keys=True, default=date.isoformat)
        return hashlib.blake2b(of_texts + values.encode(), digest_size=16).digest()


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


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a collection that can be read by itself: bytes of its file, up to the end where `end` is None."""

    start: int = 0
    end: int | None = None


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of a part."""

    file: str
    """Where they are, as shown to a user."""
    records: Iterator[tuple[int, Passage | BadRecord]]
    """In order, each with its line, counted from 1 at the start of the part."""
    count_lines: Callable[[], int]
    """How many lines the part has, once all records have been read; also blank ones."""


class Collection(ABC):
    """Passages with, per split, queries and judgements. Picklable; opening one reads no passage."""

    name: str

    @abstractmethod
    def records(self) -> Iterator[Passage | BadRecord]:
        """Stream every record in a fixed order, each checked by itself (see `scan` for duplicate ids)."""

    def parts(self) -> list[Part]:
        """Return the parts that the collection can be read in, in order: one, unless it lies in a large file."""
        return [WHOLE]

    def read(self, part: Part) -> Reading:
        """Read one of `parts()`; without lines, a record's line is its number."""
        assert part == WHOLE, "other parts are known to those who have them"
        return Reading(self.name, enumerate(self.records(), start=1), lambda: 0)

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

    def why_not(self, split: str) -> str:
        """Return how a sentence ends that says that there is no such split."""
        return f". Splits: {', '.join(self.splits()) or 'none'}."

    @abstractmethod
    def source_state(self) -> str:
        """Return a short string that changes when the file behind `records()` changes."""

    def inputs(self) -> list[Path | StorePath]:
        """Return the files that are read and that no job may write to."""
        return []

    @property
    def holds_documents(self) -> bool:
        """Whether records are whole documents, which an index holds in chunks unless it is told otherwise."""
        return False

    @property
    def excludes_self(self) -> bool:
        """Whether a query's own document (same id) counts as no result of it."""
        return excludes_self(self.name)

    def place(self) -> str:
        """Return what tells this collection from others of its name: where it lies, or the name where that is all."""
        return self.name


class CollectionOver(Collection):
    """A collection that makes its own passages of another's; all else is the other's."""

    source: Collection

    @property
    def name(self) -> str:  # type: ignore[override] # it cannot be set
        """That of the source."""
        return self.source.name

    def parts(self) -> list[Part]:
        """Return those of the source."""
        return self.source.parts()

    def splits(self) -> list[str]:
        """Return those of the source."""
        return self.source.splits()

    def queries(self, split: str) -> list[Query]:
        """Return those of the source."""
        return self.source.queries(split)

    def qrels(self, split: str) -> Qrels:
        """Return those of the source."""
        return self.source.qrels(split)

    def source_state(self) -> str:
        """Return that of the source."""
        return self.source.source_state()

    def inputs(self) -> list[Path | StorePath]:
        """Return those of the source."""
        return self.source.inputs()

    def place(self) -> str:
        """Return that of the source."""
        return self.source.place()


class UnjudgedCollection(Collection):
    """Passages without queries."""

    def splits(self) -> list[str]:
        """Return none."""
        return []

    def queries(self, split: str) -> list[Query]:
        """Raise `ValueError`: there are none."""
        raise ValueError(f"'{self.place()}' has documents and no queries, so no split '{split}'")

    def qrels(self, split: str) -> Qrels:
        """Raise `ValueError`: there are none."""
        raise ValueError(f"'{self.place()}' has documents and no judgements, so no split '{split}'")
