"""Sources of training examples: files of records, folders of files, and judged collections.

One process reads a source in pieces, which is cheap. Workers check the records of the pieces in parallel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from diffretriever.collections import BadRecord, Collection, Passage, Query, open_collection
from diffretriever.collections.base import FileCollection
from diffretriever.collections.records import Line, Lines, RefusedError, TextFile, decode, find_file
from diffretriever.core.files import files_in, is_file, is_folder, open_input
from diffretriever.schemas.locations import StorePath, parse_location
from diffretriever.training.data.examples import Checked, example_from_fields, example_from_json, example_from_tsv

MAX_RECORD_BYTES = 16_000_000
"""Longer lines are rejected without parsing."""

# Limits of a piece.
_PIECE_BYTES, _PIECE_RECORDS = 4_000_000, 1024
# Length of an invalid record in the quarantine.
_RAW_CHARACTERS = 200

_TSV = (".tsv", ".tsv.gz")
_ENDS = (".jsonl", ".jsonl.gz", *_TSV, ".parquet")
_COLLECTION_FILES = ("corpus.jsonl", "collection.tsv")


def open_source(source: str, split: str) -> ExampleSource:
    """Open a training source: a file, a folder of files, or a collection; all but a zip file may be a URI.

    Raises:
        ValueError: The source has an unknown format, or lacks the split.
    """
    location = parse_location(source)
    location = location.absolute() if isinstance(location, Path) else location
    if source and is_file(location) and location.suffix != ".zip":
        file = TextFile(location, source)
        if not file.name.endswith(_ENDS):
            raise ValueError(f"{source}: a training file must end in {', '.join(_ENDS)}; a collection in .zip")
        return FilesSource(source, (file,))
    if is_folder(location) and not any(find_file(location, name, source) for name in _COLLECTION_FILES):
        return _folder(location, source.rstrip("/"), split)
    collection = open_collection(source)
    if split not in collection.splits():
        splits = ", ".join(collection.splits()) or "none"
        raise ValueError(f"{source}: no split '{split}': set --split to one of: {splits}")
    return CollectionSource(source, collection, split)


def _folder(folder: Path | StorePath, shown: str, split: str) -> FilesSource:
    locations = [folder / info.base_name for info in files_in(folder) if info.base_name.startswith(split)]
    all_files = (TextFile(location, f"{shown}/{location.name}") for location in locations)
    files = tuple(file for file in all_files if file.name.endswith(_ENDS))
    if not files:
        raise ValueError(
            f"{shown}: neither a collection nor a folder with files whose names begin with the split '{split}' and end "
            f"in {', '.join(_ENDS)}: pass a file, or set another --split"
        )
    return FilesSource(shown, files)


class Row(NamedTuple):
    """The fields of a record and its number, from 1."""

    number: int
    fields: dict[str, Any]


class RawPiece(NamedTuple):
    """Records of one file: lines, rows and invalid records."""

    file: str
    records: Sequence[Line | Row | BadRecord]
    is_tsv: bool = False


class ExampleSource(ABC):
    """A source of examples. Opening it reads no records."""

    name: str

    @abstractmethod
    def pieces(self) -> Iterator[RawPiece]:
        """Stream the raw records in a fixed order. Raises ValueError if a file cannot be read."""

    @abstractmethod
    def state(self) -> str:
        """Return a short string that changes when a source file changes."""

    def records(self) -> Iterator[Checked | BadRecord]:
        """Stream the checked records."""
        for piece in self.pieces():
            yield from checked(piece)


@dataclass(frozen=True, slots=True)
class FilesSource(ExampleSource):
    """Files of records; the end of a name determines the format."""

    name: str
    files: tuple[TextFile, ...]

    def pieces(self) -> Iterator[RawPiece]:
        """See the base class."""
        for file in self.files:
            yield from _row_pieces(file) if file.name.endswith(".parquet") else _line_pieces(file)

    def state(self) -> str:
        """Return name, size and modification time of every file."""
        return "; ".join(file.state() for file in self.files)


@dataclass(frozen=True, slots=True)
class CollectionSource(ExampleSource):
    """The judged queries of a collection's split, with passages of relevance 1 or more as positives.

    Queries without positives are skipped. The positives' texts are kept in memory during reading.
    """

    name: str
    collection: Collection
    split: str

    def pieces(self) -> Iterator[RawPiece]:
        """See the base class. Read qrels and corpus first, then stream the queries."""
        file = f"{self.name}, queries of split {self.split}"
        qrels = self.collection.qrels(self.split)
        relevant = {passage for judged in qrels.values() for passage, relevance in judged.items() if relevance >= 1}
        texts: dict[str, Passage] = {}
        for record in self.collection.records():
            if isinstance(record, BadRecord):
                yield RawPiece("", [record])
            elif record.id in relevant:
                texts.setdefault(record.id, record)
        queries = iter(enumerate(self.collection.queries(self.split), start=1))
        while piece := list(islice(queries, _PIECE_RECORDS)):
            rows = (_judged(file, number, query, qrels[query.id], texts) for number, query in piece)
            yield RawPiece(file, [row for row in rows if row is not None])

    def state(self) -> str:
        """Return the states of corpus, queries and qrels."""
        states = [self.collection.source_state()]
        if isinstance(self.collection, FileCollection):
            split = self.collection.split_files[self.split]
            states += [split.queries.state(), split.qrels.state()]
        return "; ".join(states)


def _judged(
    file: str, number: int, query: Query, judged: Mapping[str, int], texts: dict[str, Passage]
) -> Row | BadRecord | None:
    positives = [passage for passage, relevance in judged.items() if relevance >= 1]
    missing = [passage for passage in positives if passage not in texts]
    if missing:
        reason = f"missing passage: '{missing[0]}' is judged relevant to '{query.id}' but not in the corpus"
        return BadRecord(file, number, reason, query.text[:_RAW_CHARACTERS])
    if not positives:
        return None
    passages = [{"docid": id_, "title": texts[id_].title, "text": texts[id_].text} for id_ in positives]
    return Row(number, {"query_id": query.id, "query": query.text, "positive_passages": passages})


def _line_pieces(file: TextFile) -> Iterator[RawPiece]:
    waiting: list[Line] = []
    size = 0
    for line in Lines(file, limit=MAX_RECORD_BYTES):
        waiting.append(line)
        size += len(line.data)
        if size >= _PIECE_BYTES or len(waiting) == _PIECE_RECORDS:
            yield RawPiece(file.shown, waiting, file.name.endswith(_TSV))
            waiting, size = [], 0
    if waiting:
        yield RawPiece(file.shown, waiting, file.name.endswith(_TSV))


def _row_pieces(file: TextFile) -> Iterator[RawPiece]:
    first = 1
    try:
        with open_input(file.path) as stream, pq.ParquetFile(stream) as source:
            for batch in source.iter_batches(batch_size=_PIECE_RECORDS):
                yield RawPiece(file.shown, [Row(*pair) for pair in enumerate(batch.to_pylist(), first)])
                first += len(batch)
    except pa.ArrowException as error:
        raise ValueError(f"{file.shown}: cannot be read as parquet after row {first - 1}: {error}") from error


def checked(piece: RawPiece) -> Iterator[Checked | BadRecord]:
    """Yield every record of a piece as an example, or with the reason for its rejection."""
    for record in piece.records:
        if isinstance(record, BadRecord):
            yield record
            continue
        try:
            yield _parsed(record, is_tsv=piece.is_tsv)
        except RefusedError as refused:
            if isinstance(record, Line):
                raw = record.data[: 4 * _RAW_CHARACTERS].decode(errors="replace")
            else:
                raw = repr(record.fields)
            yield BadRecord(piece.file, record.number, str(refused), raw[:_RAW_CHARACTERS])


def _parsed(record: Line | Row, *, is_tsv: bool) -> Checked:
    if isinstance(record, Row):
        return example_from_fields(record.fields)
    if not record.complete:
        raise RefusedError(f"too long: more than {MAX_RECORD_BYTES} bytes")
    return example_from_tsv(decode(record)) if is_tsv else example_from_json(decode(record))
