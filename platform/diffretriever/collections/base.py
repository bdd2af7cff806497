"""Base classes of collections: passages to index, and queries and relevance judgements for evaluation."""

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
    parse_line,
    passage_from_json,
    passage_from_tsv,
    query_from_json,
    query_from_tsv,
    read_lines,
)
from diffretriever.collections.trec import read_qrels
from diffretriever.core.files import file_size, files_in
from diffretriever.schemas.locations import StorePath

_PART_BYTES = 64 << 20


class Collection(ABC):
    """Passages with queries and judgements per split. Collections are picklable and read lazily."""

    name: str
    language: str | None = None
    """ISO 639-1 code of the passages' language, if the source states it."""

    def records(self) -> Iterator[Passage | BadRecord]:
        """Yield all records in a fixed order, validated individually (`scan` detects duplicate ids).

        Subclasses implement this or `read`.
        """
        return (record for block in self.read(WHOLE).blocks for _, record in block)

    def parts(self) -> list[Part]:
        """Return the parts for parallel reading, in order; one, unless the file is large."""
        return [WHOLE]

    def read(self, part: Part) -> Reading:
        """Read one of `parts()`; if there are no lines, a record's line is its number."""
        return Reading(self.name, in_blocks(enumerate(self.records(), start=1)), lambda: 0)

    def splits(self) -> list[str]:
        """Return the sorted names of splits with queries and judgements; empty by default."""
        return []

    def queries(self, split: str) -> list[Query]:
        """Return the judged queries of a split in file order.

        Raises:
            ValueError: the split is unknown, or a line is malformed.
        """
        raise ValueError(f"'{self.location()}' has documents and no queries, so no split '{split}'")

    def qrels(self, split: str) -> Qrels:
        """Return the relevance judgements of a split.

        Raises:
            ValueError: the split is unknown, or a line is malformed.
        """
        raise ValueError(f"'{self.location()}' has documents and no judgements, so no split '{split}'")

    def missing_split(self, split: str) -> str:
        """Return the end of the error message for an unknown split."""
        return f". Splits: {', '.join(self.splits()) or 'none'}."

    @abstractmethod
    def source_state(self) -> str:
        """Return a short string that changes when the source file changes."""

    def inputs(self) -> list[Path | StorePath]:
        """Return the input files, which jobs must not overwrite."""
        return []

    @property
    def holds_documents(self) -> bool:
        """Whether records are whole documents, which are split into chunks by default."""
        return False

    def count(self) -> int | None:
        """Return the number of records if counting is much faster than reading, else None."""
        return None

    def location(self) -> str:
        """Return the path or URI, or the name of a collection without one."""
        return self.name


class TransformedCollection(Collection):
    """Another collection with its passages transformed, without queries."""

    source: Collection

    @property
    def name(self) -> str:  # type: ignore[override] # it cannot be set
        """Name of the source."""
        return self.source.name

    @property
    def language(self) -> str | None:  # type: ignore[override] # it cannot be set
        """Language of the source."""
        return self.source.language

    def parts(self) -> list[Part]:
        """Return the parts of the source."""
        return self.source.parts()

    def source_state(self) -> str:
        """Return the state of the source."""
        return self.source.source_state()

    def inputs(self) -> list[Path | StorePath]:
        """Return the inputs of the source."""
        return self.source.inputs()

    def location(self) -> str:
        """Return the path, URI or name of the source."""
        return self.source.location()


@dataclass(frozen=True, slots=True)
class Split:
    """The files of one split; splits may share a queries file."""

    queries: TextFile
    qrels: TextFile


@dataclass(frozen=True, slots=True)
class FileCollection(Collection):
    """A collection in JSON Lines files (`.jsonl`) or TSV files, each optionally `.gz`."""

    name: str
    corpus: TextFile
    split_files: dict[str, Split]
    incomplete: dict[str, str] = field(default_factory=dict)
    """Incomplete split → message about its missing files."""
    language: str | None = None

    def parts(self) -> list[Part]:
        """Return parts of equal size; compressed files have a single part."""
        size = file_size(self.corpus.path)
        if size <= _PART_BYTES or self.corpus.name.endswith(".gz"):
            return [WHOLE]
        starts = range(0, size, _PART_BYTES)
        return [Part(start, min(start + _PART_BYTES, size)) for start in starts]

    def read(self, part: Part) -> Reading:
        """Read the lines of the corpus file that begin in a part."""
        parse = passage_from_json if _is_json(self.corpus) else passage_from_tsv
        return read_lines(self.corpus, part, parse)

    def count(self) -> int | None:
        """Return the number of lines of a corpus file with several parts, else None."""
        if len(self.parts()) == 1:
            return None
        return sum(1 for _ in Lines(self.corpus))

    def splits(self) -> list[str]:
        """Return the splits found when the collection was opened."""
        return sorted(self.split_files)

    def queries(self, split: str) -> list[Query]:
        """Return the judged queries of a split; raises ValueError if a judged query has no text."""
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

    def missing_split(self, split: str) -> str:
        """Return the split's missing files and the available splits."""
        reason = f": {self.incomplete[split]}" if split in self.incomplete else ""
        return f"{reason}{Collection.missing_split(self, split)}"

    def inputs(self) -> list[Path | StorePath]:
        """Return the corpus file and those of all splits."""
        files = [file for split in self.split_files.values() for file in (split.queries, split.qrels)]
        return [self.corpus.path, *(file.path for file in files)]

    def location(self) -> str:
        """Return the corpus file's URI or resolved path, or the name of a downloaded collection.

        The path of a file in a zip starts with the path of the zip.
        """
        if isinstance(self.corpus.path, StorePath):
            return str(self.corpus.path)
        shown = Path(self.corpus.shown).absolute()
        return str(shown.resolve()) if any(path.is_file() for path in (shown, *shown.parents)) else self.name

    def _split(self, split: str) -> Split:
        if split in self.split_files:
            return self.split_files[split]
        raise ValueError(f"collection '{self.name}' has no split '{split}'{self.missing_split(split)}")


def _is_json(file: TextFile) -> bool:
    return file.name.removesuffix(".gz").endswith(".jsonl")


def splits_in(folder: Path | StorePath, prefix: str = "") -> list[str]:
    """Return the sorted split names of the files `{prefix}SPLIT.tsv` or `.tsv.gz` in a folder."""
    names = {info.base_name.removesuffix(".gz") for info in files_in(folder)}
    matching = (name for name in names if name.startswith(prefix) and name.endswith(".tsv"))
    return sorted(name.removeprefix(prefix).removesuffix(".tsv") for name in matching)


def read_queries(source: Path | StorePath | TextFile) -> list[Query]:
    """Read a queries file: `.jsonl` objects or `id<TAB>text` lines, optionally `.gz`.

    Raises:
        ValueError: a line is malformed, or an id is repeated.
    """
    file = source if isinstance(source, TextFile) else TextFile.at(source)
    parse = query_from_json if _is_json(file) else query_from_tsv
    queries, lines = list[Query](), dict[str, int]()
    for line in Lines(file):
        query = parse_line(line, file, parse)
        if isinstance(query, BadRecord):
            raise ValueError(str(query))
        first = lines.setdefault(query.id, line.number)
        if first != line.number:
            raise ValueError(f"{file.shown}:{line.number}: duplicate query id '{query.id}', first on line {first}")
        queries.append(query)
    return queries
