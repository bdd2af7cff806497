"""A collection that lies in files: one corpus file and, per split, queries and judgements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diffretriever.collections.base import WHOLE, BadRecord, Collection, Part, Passage, Qrels, Query, Reading
from diffretriever.collections.records import (
    MAX_PASSAGE_BYTES,
    TextFile,
    judge,
    passage_from_json,
    passage_from_tsv,
    query_from_json,
    query_from_tsv,
    read_lines,
)
from diffretriever.collections.trec import read_qrels_file
from diffretriever.files import file_size, files_in
from diffretriever.schemas.places import StorePath

_PART_BYTES = 64 << 20


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
        return (record for _, record in self.read(WHOLE).records)

    def parts(self, part_bytes: int | None = None) -> list[Part]:
        """Return parts of equal size; compressed data can only be read from the start."""
        part_bytes = part_bytes or _PART_BYTES
        size = file_size(self.corpus.path)
        if size <= part_bytes or self.corpus.name.endswith(".gz"):
            return [WHOLE]
        starts = range(0, size, part_bytes)
        return [Part(start, min(start + part_bytes, size)) for start in starts]

    def read(self, part: Part) -> Reading:
        """Stream the lines of the corpus file that begin in a part."""
        parse = passage_from_json if _is_json(self.corpus) else passage_from_tsv
        lines = read_lines(self.corpus, MAX_PASSAGE_BYTES, part)
        records = ((line.number, judge(line, self.corpus, parse)) for line in lines)
        return Reading(self.corpus.shown, records, lambda: lines.count)

    def splits(self) -> list[str]:
        """Return the splits found when the collection was opened."""
        return sorted(self.split_files)

    def queries(self, split: str) -> list[Query]:
        """Return the split's judged queries; a judged query without a text is an error as well."""
        qrels = self.qrels(split)
        file = self._split(split).queries
        queries = [query for query in read_queries_file(file) if query.id in qrels]
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
        return read_qrels_file(self._split(split).qrels)

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
        shown = Path(self.corpus.shown).expanduser().absolute()
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


def read_queries(path: Path | StorePath) -> list[Query]:
    """Read a queries file: `.jsonl` objects or `id<TAB>text` lines, either may be `.gz`.

    Raises:
        ValueError: a line is no query, or an id comes twice; the message names the line.
    """
    return list(read_queries_file(TextFile.at(path)))


def read_queries_file(file: TextFile) -> Iterator[Query]:
    """Stream what `read_queries` reads."""
    parse = query_from_json if _is_json(file) else query_from_tsv
    lines: dict[str, int] = {}
    for line in read_lines(file, MAX_PASSAGE_BYTES):
        query = judge(line, file, parse)
        if isinstance(query, BadRecord):
            raise ValueError(str(query))
        first = lines.setdefault(query.id, line.number)
        if first != line.number:
            raise ValueError(f"{file.shown}:{line.number}: duplicate query id '{query.id}', first on line {first}")
        yield query
