"""Passages, queries and bad records: reads files of lines in bounded memory and validates each record."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

from diffretriever.core.files import file_state, is_file, open_input
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.metadata import PASSAGE_FIELDS, Scalar

MAX_PASSAGE_BYTES = 1_000_000
"""Longest line that is parsed; longer lines usually mean a broken file."""

ID_FIELDS = ("id", "_id", "docid", "docno", "doc_id", "pid")
TEXT_FIELDS = ("text", "contents")
QUERY_ID_FIELDS = ("id", "_id", "docid", "query_id")
QUERY_TEXT_FIELDS = (*TEXT_FIELDS, "query")

_RAW_CHARACTERS = 200
_UTF8_BYTES_PER_CHARACTER = 4
_UNFIT_FOR_ID = re.compile("[\\s\\x00-\\x1f\\x7f-\\x9f\\ufeff]")
_TYPE_NAMES = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}

T = TypeVar("T")
BOM = b"\xef\xbb\xbf"
_SKIP_BYTES = 1 << 16
_BLOCK_RECORDS = 256
_SEPARATOR = "\x1f"

Qrels = dict[str, dict[str, int]]
"""Query id → passage id → relevance."""


class BadInputError(ValueError):
    """A collection contains bad records; the message lists the first ones and the fix."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to retrieve. The id is without whitespace; title or text may be blank, not both."""

    id: str
    title: str
    text: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """Fields that an index stores, in the types of its columns."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False, repr=False)
    """All additional fields of the record, as read."""

    @property
    def digest(self) -> bytes:
        """BLAKE2b-128 of title, text and metadata, to detect changed passages."""
        contents = f"{self.title}{_SEPARATOR}{self.text}"
        # A second separator makes the split into title and text ambiguous.
        person = str(len(self.title)).encode() if contents.count(_SEPARATOR) > 1 else b""
        digest = hashlib.blake2b(contents.encode(), digest_size=16, person=person).digest()
        if not self.metadata:
            return digest
        values = json.dumps(self.metadata, sort_keys=True, default=date.isoformat)
        return hashlib.blake2b(digest + values.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Query:
    """A text to search with."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """An invalid record with its location and the first 200 characters (`raw`).

    `line` counts from 1. `reason` is `kind` or `kind: detail`.
    """

    file: str
    line: int
    reason: str
    raw: str

    @property
    def kind(self) -> str:
        """The reason without its detail."""
        return self.reason.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def bad_record(file: str, line: int, reason: str, raw: str | bytes) -> BadRecord:
    """Return a bad record with the beginning of its raw data."""
    if isinstance(raw, str):
        raw = raw[:_RAW_CHARACTERS].encode(errors="replace")
    head = raw[: _RAW_CHARACTERS * _UTF8_BYTES_PER_CHARACTER]
    return BadRecord(file, line, reason, head.decode(errors="replace")[:_RAW_CHARACTERS])


@dataclass(frozen=True, slots=True)
class Part:
    """A byte range of a collection's file; `end` None means the end of the file."""

    start: int = 0
    end: int | None = None


WHOLE = Part()
Block: TypeAlias = list[tuple[int, Passage | BadRecord]]
"""Records with their lines."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of a part."""

    file: str
    """File name in messages."""
    blocks: Iterator[Block]
    """Records in order; lines count from 1 at the start of the part."""
    count_lines: Callable[[], int]
    """Returns the number of lines of the part, including blank ones, after all blocks are read."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file to read, and its name in messages."""

    path: Path | StorePath
    shown: str

    @property
    def name(self) -> str:
        """File name that determines the format; for a link without a suffix, the name of its target."""
        if isinstance(self.path, Path) and not self.path.suffix and self.path.is_symlink():
            return self.path.resolve().name
        return self.path.name

    @classmethod
    def at(cls, path: Path | StorePath) -> TextFile:
        """Return a file that messages name by its path or URI."""
        return cls(path, str(path))

    def state(self) -> str:
        """Return name, size and modification time."""
        return f"{self.path.name}:{file_state(self.path)}"

    def read(self) -> bytes:
        """Return the decompressed contents; raises errors of the file system and gzip."""
        with _open(self) as stream:
            return stream.read()


class Line(NamedTuple):
    """A line without its terminator. `number` counts from 1; `complete` is False if `data` is truncated."""

    number: int
    data: bytes
    complete: bool


class Lines:
    """Iterates once over the non-blank lines that begin in a part of a file, truncated to `limit` bytes.

    Lines end in LF or CRLF. A byte order mark is skipped, and `.gz` is decompressed.
    """

    def __init__(self, file: TextFile, part: Part = WHOLE, limit: int = MAX_PASSAGE_BYTES) -> None:
        self._file, self._limit, self._part = file, limit, part
        self.count = 0
        """Lines read so far, including blank ones."""

    def __iter__(self) -> Iterator[Line]:
        """Yield each line, numbered from the start of the part.

        Raises:
            ValueError: the gzip data are damaged.
        """
        try:
            with _open(self._file) as stream:
                yield from self._read(stream)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self._file.shown}: damaged gzip data after line {self.count}: {error}") from error

    def _read(self, stream: BinaryIO | gzip.GzipFile) -> Iterator[Line]:
        if self._part.start:
            # Skips the line that begins in the previous part.
            stream.seek(self._part.start - 1)
            _skip_to_next_line(stream)
        while self._part.end is None or stream.tell() < self._part.end:
            at_start = stream.tell() == 0
            chunk = stream.readline(self._limit + len(BOM) + len(b"\r\n"))
            if not chunk:
                return
            self.count += 1
            data = _content(chunk, first=at_start)
            complete = len(data) <= self._limit
            if not complete and not chunk.endswith(b"\n"):
                _skip_to_next_line(stream)
            if data.strip():
                yield Line(self.count, data[: self._limit], complete)


def find_file(folder: Path | StorePath, name: str, shown: str) -> TextFile | None:
    """Find `name` in a folder, or else `name.gz`."""
    for candidate in (name, f"{name}.gz"):
        if is_file(folder / candidate):
            return TextFile(folder / candidate, f"{shown}/{candidate}")
    return None


@contextmanager
def _open(file: TextFile) -> Iterator[BinaryIO | gzip.GzipFile]:
    with open_input(file.path) as stream:
        if not file.name.endswith(".gz"):
            yield stream
            return
        if not stream.read(1):
            # gzip accepts an empty file.
            raise EOFError("the file is empty, as a download that was cut short")
        stream.seek(0)
        with gzip.open(stream) as unpacked:
            yield unpacked


def _content(chunk: bytes, *, first: bool) -> bytes:
    if first:
        chunk = chunk.removeprefix(BOM)
    if not chunk.endswith(b"\n"):
        return chunk
    return chunk[:-1].removesuffix(b"\r")


def _skip_to_next_line(stream: BinaryIO | gzip.GzipFile) -> None:
    while chunk := stream.readline(_SKIP_BYTES):
        if chunk.endswith(b"\n"):
            return


class Untyped(str):
    """A value from an untyped file such as CSV."""

    __slots__ = ()


class RefusedError(ValueError):
    """A record is invalid; the message is the reason, `kind` or `kind: detail`."""


def in_blocks(records: Iterable[T]) -> Iterator[list[T]]:
    """Yield records in blocks."""
    rest = iter(records)
    while block := list(islice(rest, _BLOCK_RECORDS)):
        yield block


def read_lines(file: TextFile, part: Part, parse: Callable[[str], Passage]) -> Reading:
    """Return the passages and bad records of the lines that begin in a part."""
    lines = Lines(file, part)
    records = ((line.number, parse_line(line, file, parse)) for line in lines)
    return Reading(file.shown, in_blocks(records), lambda: lines.count)


def parse_line(line: Line, file: TextFile, parse: Callable[[str], T]) -> T | BadRecord:
    """Parse a line; return a bad record if it is invalid."""
    try:
        return parse(decode(line))
    except RefusedError as refused:
        return bad_record(file.shown, line.number, str(refused), line.data)


def decode(line: Line) -> str:
    """Decode a line; raises `RefusedError` if it is too long or not UTF-8."""
    if not line.complete:
        raise RefusedError(f"too long: more than {MAX_PASSAGE_BYTES} bytes")
    try:
        return line.data.decode()
    except UnicodeDecodeError as error:
        byte = line.data[error.start]
        raise RefusedError(f"invalid UTF-8: byte 0x{byte:02x} at byte {error.start + 1}") from error


def passage_from_json(line: str) -> Passage:
    """Read `{"id": ..., "title": ..., "text": ...}`; the title may be absent or null.

    The id is the first field present of `ID_FIELDS`, a string or an integer; the text that of `TEXT_FIELDS`.
    """
    fields = _json_object(line)
    return passage_of(fields, {}, first_present(fields, ID_FIELDS, "id"))


def passage_of(fields: Mapping[str, Any], names: Mapping[str, str], id_field: str | None) -> Passage:
    """Return the passage of a record, with the id `-` if `id_field` is None; raises `RefusedError`.

    `names` maps `title` and `text` to field names; `id_field` is the field of the id.
    """
    passage_id = "-" if id_field is None else id_of(fields, (id_field,))
    title = fields.get(names.get("title", "title"))
    if "title" in names:
        first_present(fields, (names["title"],), "title")
    return checked_passage(
        passage_id,
        "" if title is None else string_of(names.get("title", "title"), title),
        text_of(fields, (names["text"],) if "text" in names else TEXT_FIELDS),
        extra_fields(fields, [*names.values(), id_field or ""]),
    )


def extra_fields(fields: Mapping[str, Any], excluded: Collection[str] = ()) -> dict[str, Any]:
    """Return a record's additional fields, without those of a passage and those in `excluded`.

    An object `metadata`, as in BEIR, is flattened; the record's own fields take precedence.
    """
    extra = {name: value for name, value in fields.items() if name not in PASSAGE_FIELDS and name not in excluded}
    inner = extra.get("metadata")
    if not isinstance(inner, Mapping):
        return extra
    del extra["metadata"]
    return {**{name: value for name, value in inner.items() if name not in PASSAGE_FIELDS}, **extra}


def passage_from_tsv(line: str) -> Passage:
    """Read `id<TAB>text`."""
    passage_id, text = _two_columns(line)
    return checked_passage(passage_id, "", text)


def query_from_json(line: str) -> Query:
    """Read `{"id": ..., "text": ...}`; the first present name of `QUERY_ID_FIELDS` and `QUERY_TEXT_FIELDS` counts."""
    fields = _json_object(line)
    return checked_query(id_of(fields, QUERY_ID_FIELDS), text_of(fields, QUERY_TEXT_FIELDS))


def query_from_tsv(line: str) -> Query:
    """Read `id<TAB>text`."""
    return checked_query(*_two_columns(line))


def checked_passage(passage_id: str, title: str, text: str, extra: Mapping[str, Any] | None = None) -> Passage:
    """Return a validated passage; raises `RefusedError` for an invalid id, invalid characters, or blank contents."""
    check_id(passage_id)
    _check_characters("title", title)
    _check_characters("text", text)
    if not title.strip() and not text.strip():
        raise RefusedError("empty passage: title and text are blank")
    return Passage(passage_id, title, text, extra=extra or {})


def checked_query(query_id: str, text: str) -> Query:
    """Return a validated query; raises `RefusedError` for an invalid id, invalid characters or a blank text."""
    check_id(query_id)
    _check_characters("text", text)
    if not text.strip():
        raise RefusedError("empty query: the text is blank")
    return Query(query_id, text)


def check_id(value: str) -> None:
    """Raise `RefusedError` for an id that is invalid in a TREC run, whose columns are separated by spaces."""
    if not value:
        raise RefusedError("bad id: it is empty")
    if _UNFIT_FOR_ID.search(value):
        raise RefusedError(f"bad id: {value[:40]!a} has whitespace or control characters")
    _check_characters("id", value)


def check_ids(values: Sequence[str]) -> None:
    """Raise `RefusedError` for the first id that is invalid in a TREC run."""
    if all(values) and not _UNFIT_FOR_ID.search("".join(values)):
        return
    for value in values:
        check_id(value)


def _json_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise RefusedError(f"malformed JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise RefusedError("malformed JSON: nested too deeply") from error
    except ValueError as error:
        raise RefusedError("malformed JSON: a number with too many digits") from error
    if not isinstance(value, dict):
        raise RefusedError(f"not an object: the line is {_type_name(value)}")
    return value


def id_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the id, a string or an integer, from the first present field of `names`."""
    name = first_present(fields, names, "id")
    value = fields[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string_of(name, value)


def text_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the text from the first present field of `names`."""
    name = first_present(fields, names, "text")
    return string_of(name, fields[name])


def first_present(fields: Mapping[str, Any], names: tuple[str, ...], role: str) -> str:
    """Return the first of `names` among the fields; raises `RefusedError`, which names the `role`, if there is none."""
    for name in names:
        if name in fields:
            return name
    raise RefusedError(f"no {role} field: none of {', '.join(names)}")


def string_of(name: str, value: Any) -> str:
    """Return a string value; raises `RefusedError` for other types."""
    if not isinstance(value, str):
        raise RefusedError(f"wrong type: '{name}' is {_type_name(value)}")
    return str(value)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    return _TYPE_NAMES.get(type(value), "an object")


def _two_columns(line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise RefusedError(f"wrong column count: {len(columns)} instead of 2 (id, tab, text)")
    return columns[0], columns[1]


def _check_characters(name: str, value: str) -> None:
    if "\x00" in value:
        raise RefusedError(f"NUL character: in {name}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"lone surrogate: in {name}") from error
