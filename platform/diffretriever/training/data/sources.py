"""Where training examples come from: files of records, folders of them, collections with judgements, docstrings.

Reading a source in pieces is cheap and cannot be split; checking the records of a piece takes the time and can be done
anywhere. The docstrings are those of installed libraries: a summary line is the query, the rest its passage. The
standard library gives none: all of its documentation that has a text is in the built-in collection, as a passage if not
as a question too, and that collection is there to measure on.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from diffretriever.collections import BadRecord, Collection, Passage, Qrels, Query, open_collection
from diffretriever.collections.base import FileCollection
from diffretriever.collections.pydoc import PYDOC, passages_and_summaries
from diffretriever.collections.records import Line, RefusedError, TextFile, decode, find_file, read_lines
from diffretriever.files import cache_dir, file_state, files_in, is_file, is_folder, open_input, whole_file
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.training.data.examples import (
    Checked,
    are_in,
    example_from_fields,
    example_from_json,
    example_from_tsv,
    keys_of,
    passage_key,
    text_key,
)

RawKind: TypeAlias = Literal["jsonl", "tsv", "rows", "bad"]
"""What the records of a piece are: lines of a file, rows of a table, or unusable."""

_Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

DOCSTRINGS = "docstrings"
"""The source that is made of the documentation of installed libraries."""

MAX_RECORD_BYTES = 16_000_000
"""A longer line is refused unparsed."""

# A piece ends at whichever comes first; of a collection it has so many queries.
_PIECE_BYTES, _PIECE_RECORDS = 4_000_000, 1024
_QUERIES_AT_ONCE = 512
# Of an unusable record, for the quarantine.
_RAW_CHARACTERS = 200
_LINES = pa.schema([("number", pa.int64()), ("data", pa.large_binary()), ("complete", pa.bool_())])

_KINDS: dict[str, RawKind] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".parquet": "rows",
}

_COLLECTION_FILES = ("corpus.jsonl", "collection.tsv")

_DOCSTRINGS_FORMAT = 1
"""Raise when the pairs change."""

_DISTRIBUTIONS = {
    "bm25s": "bm25s",
    "huggingface_hub": "huggingface-hub",
    "lance": "pylance",
    "lancedb": "lancedb",
    "matplotlib": "matplotlib",
    "numba": "numba",
    "numpy": "numpy",
    "peft": "peft",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "ray": "ray",
    "scipy": "scipy",
    "torch": "torch",
    "tqdm": "tqdm",
    "transformers": "transformers",
}
"""Package → distribution: what this project requires, and is therefore installed wherever it runs."""

_SKIPPED_FOLDERS = frozenset({"__pycache__", "_vendor", "test", "testing", "tests", "thirdparty_files"})


def open_source(source: str, split: str) -> ExampleSource:
    """Open a training source: a file, a folder of files, a collection, or `docstrings`; all but a zip may be a URI.

    Raises:
        ValueError: nothing there can be trained on; the message says what can be.
    """
    place = _place_of(source)
    if source and is_file(place) and place.suffix != ".zip":
        if _kind_of(place) is None:
            raise ValueError(f"{source}: a training file must end in {', '.join(_KINDS)}; a collection in .zip")
        return FilesSource(source, (TextFile(place, source),))
    if is_folder(place) and not any(find_file(place, name, source) for name in _COLLECTION_FILES):
        return _folder(place, source.rstrip("/"), split)
    if source == DOCSTRINGS:
        return FilesSource(source, (TextFile(_docstrings_file(), source),))
    collection = open_collection(source)
    if split not in collection.splits():
        there = ", ".join(collection.splits()) or "none"
        raise ValueError(f"{source}: no split '{split}' to train on: say --split. Splits: {there}.")
    return CollectionSource(source, collection, split)


def _place_of(source: str) -> Path | StorePath:
    place = as_place(source)
    return place.absolute() if isinstance(place, Path) else place


def _folder(folder: Path | StorePath, shown: str, split: str) -> FilesSource:
    places = [folder / info.base_name for info in files_in(folder) if info.base_name.startswith(split)]
    files = tuple(TextFile(place, f"{shown}/{place.name}") for place in places if _kind_of(place))
    if not files:
        raise ValueError(
            f"{shown}: neither a collection nor a file there whose name begins with the split '{split}' and ends in "
            f"{', '.join(_KINDS)}: give such a file itself, or another --split"
        )
    return FilesSource(shown, files)


def _kind_of(path: Path | StorePath) -> RawKind | None:
    name = TextFile.at(path).name
    return next((kind for end, kind in _KINDS.items() if name.endswith(end)), None)


def _state_of(path: Path | StorePath) -> str:
    return f"{path.name}:{file_state(path)}"


class RawPiece(NamedTuple):
    """Some records of one file.

    `jsonl` and `tsv`: number, data and complete of each line. `rows`: number and the fields of each record. `bad`: the
    fields of `BadRecord`.
    """

    file: str
    kind: RawKind
    records: pa.Table


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
            yield from _row_pieces(file) if kind == "rows" else _line_pieces(file, kind)

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
                yield _bad_piece([record])
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
                bad.append(BadRecord(file, number, reason, query.text[:_RAW_CHARACTERS]))
            elif positives:
                good[number] = _fields(query, [texts[passage] for passage in positives])
        if good:
            yield _rows_piece(file, good, pa.array(good.values()))
        if bad:
            yield _bad_piece(bad)

    def state(self) -> str:
        """Return the states of corpus, queries and judgements."""
        states = [self.collection.source_state()]
        if isinstance(self.collection, FileCollection):
            split = self.collection.split_files[self.split]
            states += [_state_of(split.queries.path), _state_of(split.qrels.path)]
        return "; ".join(states)


def _fields(query: Query, positives: list[Passage]) -> dict[str, object]:
    passages = [{"docid": p.id, "title": p.title, "text": p.text} for p in positives]
    return {"query_id": query.id, "query": query.text, "positive_passages": passages}


def _line_pieces(file: TextFile, kind: RawKind) -> Iterator[RawPiece]:
    """Stream a text file in pieces of some megabytes."""
    waiting: list[Line] = []
    size = 0
    for line in read_lines(file, MAX_RECORD_BYTES):
        waiting.append(line)
        size += len(line.data)
        if size >= _PIECE_BYTES or len(waiting) == _PIECE_RECORDS:
            yield _piece(file, kind, waiting)
            waiting, size = [], 0
    if waiting:
        yield _piece(file, kind, waiting)


def _piece(file: TextFile, kind: RawKind, lines: list[Line]) -> RawPiece:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*lines, strict=True), _LINES, strict=True)]
    return RawPiece(file.shown, kind, pa.Table.from_arrays(columns, schema=_LINES))


def _row_pieces(file: TextFile) -> Iterator[RawPiece]:
    """Stream a parquet file's rows.

    Raises:
        ValueError: it is no parquet file, or a damaged one.
    """
    first = 1
    try:
        with open_input(file.path) as stream, pq.ParquetFile(stream) as source:
            for batch in source.iter_batches(batch_size=_PIECE_RECORDS):
                yield _rows_piece(file.shown, range(first, first + len(batch)), batch.to_struct_array())
                first += len(batch)
    except pa.ArrowException as error:
        raise ValueError(f"{file.shown}: cannot be read as parquet after row {first - 1}: {error}") from error


def _rows_piece(file: str, numbers: Iterable[int], fields: pa.Array) -> RawPiece:
    """Return a piece of records that are given as structs, with their numbers."""
    return RawPiece(file, "rows", pa.table({"number": pa.array(numbers, pa.int64()), "fields": fields}))


def _bad_piece(bad: list[BadRecord]) -> RawPiece:
    """Return a piece of records that reading itself has found unusable."""
    fields = [{"file": b.file, "line": b.line, "reason": b.reason, "raw": b.raw} for b in bad]
    return RawPiece("", "bad", pa.Table.from_pylist(fields))


def checked(piece: RawPiece) -> Iterator[Checked | BadRecord]:
    """Yield every record of a piece, as an example or with the reason why it cannot be one."""
    if piece.kind == "bad":
        yield from (BadRecord(**row) for row in piece.records.to_pylist())
        return
    for row in piece.records.to_pylist():
        yield _judge(piece.file, row, _PARSERS[piece.kind])


def _judge(file: str, row: dict[str, Any], parse: Callable[[dict[str, Any]], Checked]) -> Checked | BadRecord:
    try:
        return parse(row)
    except RefusedError as refused:
        raw = row["data"][: 4 * _RAW_CHARACTERS].decode(errors="replace") if "data" in row else repr(row["fields"])
        return BadRecord(file, row["number"], str(refused), raw[:_RAW_CHARACTERS])


def _from_line(parse: Callable[[str], Checked], row: dict[str, Any]) -> Checked:
    if not row["complete"]:
        raise RefusedError(f"too long: more than {MAX_RECORD_BYTES} bytes")
    return parse(decode(Line(row["number"], row["data"], complete=True)))


def _from_row(row: dict[str, Any]) -> Checked:
    return example_from_fields(row["fields"])


_PARSERS: dict[RawKind, Callable[[dict[str, Any]], Checked]] = {
    "jsonl": partial(_from_line, example_from_json),
    "tsv": partial(_from_line, example_from_tsv),
    "rows": _from_row,
}


def _docstrings_file() -> Path:
    """Return a file of records in Tevatron's layout; the first call with these versions of the libraries writes it."""
    versions = [sys.version, *(f"{name} {metadata.version(name)}" for name in _DISTRIBUTIONS.values())]
    key = hashlib.blake2b("\n".join(versions).encode(), digest_size=8).hexdigest()
    target = cache_dir() / f"{DOCSTRINGS}-{key}-format{_DOCSTRINGS_FORMAT}.jsonl"
    if not target.is_file():
        logging.getLogger(__name__).info("reading the docstrings of %s", ", ".join(_DISTRIBUTIONS))
        with whole_file(target) as stream:
            docs = {name: doc for package in _DISTRIBUTIONS for name, doc in documented_in(_folder_of(package))}
            stream.writelines(json.dumps(pair, ensure_ascii=False).encode() + b"\n" for pair in docstring_pairs(docs))
    return target


def docstring_pairs(docs: dict[str, str]) -> Iterator[dict[str, object]]:
    """Yield a record for each docstring, of those by qualified name, whose summary asks for its rest alone.

    Which do is decided as for the built-in collection, and none of that collection's texts is among them.
    """
    known = keys_of([open_collection(PYDOC)])
    passages, summaries = passages_and_summaries(docs)
    for passage in passages:
        summary = summaries.get(passage.id)
        if summary is None or are_in((text_key(summary), passage_key(passage)), known).any():
            continue
        positive = {"docid": passage.id, "title": passage.title, "text": passage.text}
        yield {"query_id": f"summary:{passage.id}", "query": summary, "positive_passages": [positive]}


def documented_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield qualified name and cleaned docstring of all that is documented in a package's Python sources."""
    with warnings.catch_warnings():
        # Else a filter that makes errors of warnings would make other pairs.
        warnings.simplefilter("ignore")
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder.parent)
            if _SKIPPED_FOLDERS & set(inside.parts):
                continue
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                # Templates and sources for other interpreters.
                continue
            module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
            yield from _documented(tree, module)


def _documented(node: _Documented, name: str) -> Iterator[tuple[str, str]]:
    doc = ast.get_docstring(node)
    if doc:
        # A literal may hold lone surrogates, which no file can.
        yield name, doc.encode("utf-8", "replace").decode()
    if isinstance(node, ast.Module | ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _documented(inner, f"{name}.{inner.name}")


def _folder_of(package: str) -> Path:
    # Of a package that is not imported, this finds the place without importing it.
    spec = find_spec(package)
    assert spec is not None, f"{package} is required and installed"
    assert spec.submodule_search_locations, f"{package} is a package"
    return Path(spec.submodule_search_locations[0])
