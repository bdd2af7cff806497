"""What a collection is: passages to index, queries and relevance judgements to evaluate with, most often in files.

Published results of public collections are made in ways of their own: a measure, and what is left out, by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diffretriever.collections.records import (
    WHOLE,
    BadRecord,
    Lines,
    Part,
    Passage,
    Qrels,
    Query,
    Reading,
    TextFile,
    in_blocks,
    judge,
    passage_from_json,
    passage_from_tsv,
    query_from_json,
    query_from_tsv,
    read_lines,
)
from diffretriever.collections.trec import read_qrels
from diffretriever.core.files import file_size, files_in
from diffretriever.schemas.places import StorePath

_PART_BYTES = 64 << 20
_MSMARCO = "msmarco"
_DOCUMENTS = "document"
_JUDGED_ONCE = ("train", "dev")
"""MS MARCO's queries with one answer; those of TREC have graded judgements."""


def own_measure(collection: str, split: str) -> str:
    """Return the measure that results are published in (paper §4): MRR@10 for MS MARCO's own queries, else nDCG@10."""
    is_judged_once = collection.lower().startswith(_MSMARCO) and split.startswith(_JUDGED_ONCE)
    return "MRR@10" if is_judged_once else "nDCG@10"


def least_relevance(collection: str, split: str) -> int:
    """Return the lowest grade that is relevant to a measure without grades.

    TREC counts MS MARCO's passages from grade 2 on, its documents from 1 on as everywhere.
    """
    is_of_passages = collection.lower().startswith(_MSMARCO) and _DOCUMENTS not in collection.lower()
    return 2 if is_of_passages and not split.startswith(_JUDGED_ONCE) else 1


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
        return Reading(self.name, in_blocks(enumerate(self.records(), start=1)), lambda: 0)

    def splits(self) -> list[str]:
        """Return the names of the splits that have queries and judgements, sorted; empty unless a class has some."""
        return []

    def queries(self, split: str) -> list[Query]:
        """Return the queries judged in the split, in file order.

        Raises:
            ValueError: There is no such split, or a line is malformed (the message names file and line).
        """
        raise ValueError(f"'{self.place()}' has documents and no queries, so no split '{split}'")

    def qrels(self, split: str) -> Qrels:
        """Return the split's relevance judgements.

        Raises:
            ValueError: There is no such split, or a line is malformed (the message names file and line).
        """
        raise ValueError(f"'{self.place()}' has documents and no judgements, so no split '{split}'")

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

    def count(self) -> int | None:
        """Return the number of records where reading them all takes long and counting them does not, else None."""
        return None

    def place(self) -> str:
        """Return what tells this collection from others of its name: where it lies, or the name where that is all."""
        return self.name


class CollectionOver(Collection):
    """A collection that makes its own passages of another's, and has no queries."""

    source: Collection

    @property
    def name(self) -> str:  # type: ignore[override] # it cannot be set
        """That of the source."""
        return self.source.name

    def parts(self) -> list[Part]:
        """Return those of the source."""
        return self.source.parts()

    def source_state(self) -> str:
        """Return that of the source."""
        return self.source.source_state()

    def inputs(self) -> list[Path | StorePath]:
        """Return those of the source."""
        return self.source.inputs()

    def place(self) -> str:
        """Return that of the source."""
        return self.source.place()


@dataclass(frozen=True, slots=True)
class Split:
    """The files of one split; several splits may share their queries' file."""

    queries: TextFile
    qrels: TextFile


@dataclass(frozen=True, slots=True)
class FileCollection(Collection):
    """Files named `.jsonl` hold JSON objects, others tab-separated columns; each may be `.gz`."""

    name: str
    corpus: TextFile
    split_files: dict[str, Split]
    lacking: dict[str, str] = field(default_factory=dict)
    """Split that its files could be but are not all there → which are not, as a sentence."""

    def records(self) -> Iterator[Passage | BadRecord]:
        """Stream the corpus file in its own order."""
        return (record for block in self.read(WHOLE).blocks for _, record in block)

    def parts(self) -> list[Part]:
        """Return parts of equal size; compressed data can only be read from the start."""
        size = file_size(self.corpus.path)
        if size <= _PART_BYTES or self.corpus.name.endswith(".gz"):
            return [WHOLE]
        starts = range(0, size, _PART_BYTES)
        return [Part(start, min(start + _PART_BYTES, size)) for start in starts]

    def read(self, part: Part) -> Reading:
        """Stream the lines of the corpus file that begin in a part."""
        parse = passage_from_json if _is_json(self.corpus) else passage_from_tsv
        return read_lines(self.corpus, part, parse)

    def count(self) -> int | None:
        """Return the number of lines of a corpus file of several parts."""
        if len(self.parts()) == 1:
            return None
        return sum(1 for _ in Lines(self.corpus))

    def splits(self) -> list[str]:
        """Return the splits found when the collection was opened."""
        return sorted(self.split_files)

    def queries(self, split: str) -> list[Query]:
        """Return the split's judged queries; a judged query without a text is an error as well."""
        qrels = self.qrels(split)
        file = self._split(split).queries
        queries = [query for query in read_queries(file) if query.id in qrels]
        missing = qrels.keys() - {query.id for query in queries}
        if missing:
            example = min(missing)
            raise ValueError(
                f"{file.shown}: {len(missing)} queries judged in split '{split}' are not here, "
                f"for example '{example}'. Add them, or remove their judgements."
            )
        return queries

    def qrels(self, split: str) -> Qrels:
        """Return the split's judgements."""
        return read_qrels(self._split(split).qrels)

    def source_state(self) -> str:
        """Return name, size and modification time of the corpus file."""
        return self.corpus.state()

    def why_not(self, split: str) -> str:
        """Return which of the split's files are not there, and the splits that are."""
        why = f": {self.lacking[split]}" if split in self.lacking else ""
        return f"{why}{Collection.why_not(self, split)}"

    def inputs(self) -> list[Path | StorePath]:
        """Return the corpus file and those of all splits."""
        judged = [file.path for split in self.split_files.values() for file in (split.queries, split.qrels)]
        return [self.corpus.path, *judged]

    def place(self) -> str:
        """Return the corpus file's URI, or its path, absolute and without links; the name where it is a download.

        A file in a zip lies below the zip, wherever it was unpacked.
        """
        if isinstance(self.corpus.path, StorePath):
            return str(self.corpus.path)
        shown = Path(self.corpus.shown).absolute()
        return str(shown.resolve()) if any(path.is_file() for path in (shown, *shown.parents)) else self.name

    def _split(self, split: str) -> Split:
        if split in self.split_files:
            return self.split_files[split]
        raise ValueError(f"collection '{self.name}' has no split '{split}'{self.why_not(split)}")


def _is_json(file: TextFile) -> bool:
    return file.name.removesuffix(".gz").endswith(".jsonl")


def splits_in(folder: Path | StorePath, begin: str = "") -> list[str]:
    """Return what stands between `begin` and `.tsv` or `.tsv.gz` in the names of a folder's files, sorted."""
    names = {info.base_name.removesuffix(".gz") for info in files_in(folder)}
    found = (name for name in names if name.startswith(begin) and name.endswith(".tsv"))
    return sorted(name.removeprefix(begin).removesuffix(".tsv") for name in found)


def read_queries(source: Path | StorePath | TextFile) -> list[Query]:
    """Read a queries file: `.jsonl` objects or `id<TAB>text` lines, either may be `.gz`.

    Raises:
        ValueError: a line is no query, or an id comes twice; the message names the line.
    """
    file = source if isinstance(source, TextFile) else TextFile.at(source)
    parse = query_from_json if _is_json(file) else query_from_tsv
    queries, lines = list[Query](), dict[str, int]()
    for line in Lines(file):
        query = judge(line, file, parse)
        if isinstance(query, BadRecord):
            raise ValueError(str(query))
        first = lines.setdefault(query.id, line.number)
        if first != line.number:
            raise ValueError(f"{file.shown}:{line.number}: duplicate query id '{query.id}', first on line {first}")
        queries.append(query)
    return queries
