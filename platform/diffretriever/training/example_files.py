"""What training examples can be read from: files of records, folders of them, and collections with judgements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from diffretriever.collections import BadRecord, Collection, Passage, Qrels, Query, open_collection
from diffretriever.collections.files import FileCollection
from diffretriever.collections.lines import TextFile, find_file
from diffretriever.training.docstring_pairs import DOCSTRINGS, docstrings_file
from diffretriever.training.example_records import Checked
from diffretriever.training.raw_records import RawKind, RawPiece, bad_piece, checked, lines_of, rows_of, rows_piece

_KINDS: dict[str, RawKind] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".parquet": "rows",
}
_COLLECTION_FILES = ("corpus.jsonl", "collection.tsv")
_QUERIES_AT_ONCE = 512


class ExampleSource(ABC):
    """Where examples come from. Picklable; opening one reads no record."""

    name: str

    @abstractmethod
    def pieces(self) -> Iterator[RawPiece]:
        """Stream the records as they are, in a fixed order.

        Raises:
            ValueError: a file cannot be read at all.
        """

    @abstractmethod
    def state(self) -> str:
        """Return a short string that changes when a file behind it changes."""

    def records(self) -> Iterator[Checked | BadRecord]:
        """Stream the records, each checked by itself."""
        for piece in self.pieces():
            yield from checked(piece)


@dataclass(frozen=True, slots=True)
class FilesSource(ExampleSource):
    """Files of records, one after another; what each holds is said by the end of its name."""

    name: str
    files: tuple[TextFile, ...]

    def pieces(self) -> Iterator[RawPiece]:
        """Stream the files in their order."""
        for file in self.files:
            kind = _kind_of(file.path)
            assert kind is not None, "only files of a known kind are opened"
            yield from rows_of(file) if kind == "rows" else lines_of(file, kind)

    def state(self) -> str:
        """Return name, size and modification time of every file."""
        return "; ".join(_state_of(file.path) for file in self.files)


@dataclass(frozen=True, slots=True)
class CollectionSource(ExampleSource):
    """The judged queries of a collection's split: what is judged 1 or more is a positive, and nothing a negative.

    Queries without a positive are no examples. The positives' texts are held in memory while it is read.
    """

    name: str
    collection: Collection
    split: str

    def pieces(self) -> Iterator[RawPiece]:
        """Read the judgements, then the corpus, then stream the queries in their order."""
        qrels = self.collection.qrels(self.split)
        wanted = {passage for judged in qrels.values() for passage, relevance in judged.items() if relevance >= 1}
        texts: dict[str, Passage] = {}
        for record in self.collection.records():
            if isinstance(record, BadRecord):
                yield bad_piece([record])
            elif record.id in wanted:
                texts.setdefault(record.id, record)
        queries = iter(enumerate(self.collection.queries(self.split), start=1))
        while some := list(islice(queries, _QUERIES_AT_ONCE)):
            yield from self._pieces_of(some, qrels, texts)

    def _pieces_of(
        self, queries: list[tuple[int, Query]], qrels: Qrels, texts: dict[str, Passage]
    ) -> Iterator[RawPiece]:
        file = f"{self.name}, queries of split {self.split}"
        good: dict[int, dict[str, object]] = {}
        bad: list[BadRecord] = []
        for number, query in queries:
            positives = [passage for passage, relevance in qrels[query.id].items() if relevance >= 1]
            missing = [passage for passage in positives if passage not in texts]
            if missing:
                reason = f"missing passage: '{missing[0]}' is judged relevant to '{query.id}' and not in the corpus"
                bad.append(BadRecord(file, number, reason, query.text[:200]))
            elif positives:
                good[number] = _fields(query, [texts[passage] for passage in positives])
        if good:
            yield rows_piece(file, good, pa.array(good.values()))
        if bad:
            yield bad_piece(bad)

    def state(self) -> str:
        """Return the states of corpus, queries and judgements."""
        states = [self.collection.source_state()]
        if isinstance(self.collection, FileCollection):
            split = self.collection.split_files[self.split]
            states += [_state_of(split.queries.path), _state_of(split.qrels.path)]
        return "; ".join(states)


def open_source(source: str, split: str) -> ExampleSource:
    """Open a training source: a file, a folder of files, a collection, or `docstrings`.

    Raises:
        ValueError: nothing there can be trained on; the message says what can be.
    """
    path = Path(source).expanduser().absolute()
    if source and path.is_file() and path.suffix != ".zip":
        if _kind_of(path) is None:
            raise ValueError(f"{source}: a training file must end in {', '.join(_KINDS)}; a collection in .zip")
        return FilesSource(source, (TextFile(path, source),))
    if path.is_dir() and not any(find_file(path, name, source) for name in _COLLECTION_FILES):
        return _folder(path, source.rstrip("/"), split)
    if source == DOCSTRINGS:
        return FilesSource(source, (TextFile(docstrings_file(), source),))
    collection = open_collection(source)
    if split not in collection.splits():
        there = ", ".join(collection.splits()) or "none"
        raise ValueError(f"{source}: no split '{split}' to train on: say --split. Splits: {there}.")
    return CollectionSource(source, collection, split)


def _folder(path: Path, shown: str, split: str) -> FilesSource:
    files = [p for p in sorted(path.iterdir()) if p.is_file() and p.name.startswith(split) and _kind_of(p)]
    if not files:
        raise ValueError(
            f"{shown}: neither a collection nor a file there whose name begins with the split '{split}' and ends in "
            f"{', '.join(_KINDS)}: give such a file itself, or another --split"
        )
    return FilesSource(shown, tuple(TextFile(file, f"{shown}/{file.name}") for file in files))


def _kind_of(path: Path) -> RawKind | None:
    return next((kind for end, kind in _KINDS.items() if path.name.endswith(end)), None)


def _state_of(path: Path) -> str:
    status = path.stat()
    return f"{path.name}:{status.st_size}:{status.st_mtime_ns}"


def _fields(query: Query, positives: list[Passage]) -> dict[str, object]:
    passages = [{"docid": p.id, "title": p.title, "text": p.text} for p in positives]
    return {"query_id": query.id, "query": query.text, "positive_passages": passages}
