"""Records: passages, queries, bad ones, and files of them: lines read in bounded memory, and what makes each usable."""

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
from diffretriever.schemas.metadata import NOT_METADATA, Scalar
from diffretriever.schemas.places import StorePath

MAX_PASSAGE_BYTES = 1_000_000
"""Longest line that is parsed: no encoder reads that far, and a longer one is most often a broken file."""

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


def digests_of(passages: Iterable[Passage]) -> list[bytes]:
    """Return the digest of each passage."""
    return [passage.digest for passage in passages]


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


def bad_record(file: str, line: int, reason: str, raw: str | bytes) -> BadRecord:
    """Return a bad record with the beginning of the text or bytes that were read."""
    if isinstance(raw, str):
        raw = raw[:_RAW_CHARACTERS].encode(errors="replace")
    head = raw[: _RAW_CHARACTERS * _UTF8_BYTES_PER_CHARACTER]
    return BadRecord(file, line, reason, head.decode(errors="replace")[:_RAW_CHARACTERS])


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a collection that can be read by itself: bytes of its file, up to the end where `end` is None."""

    start: int = 0
    end: int | None = None


WHOLE = Part()
Block: TypeAlias = list[tuple[int, Passage | BadRecord]]
"""Some records, each with its line."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of a part."""

    file: str
    """Where they are, as shown to a user."""
    blocks: Iterator[Block]
    """In order; lines count from 1 at the start of the part."""
    count_lines: Callable[[], int]
    """Number of lines of the part, blank ones too, once all blocks have been read."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file to read, and its name as shown to a user."""

    path: Path | StorePath
    shown: str

    @property
    def name(self) -> str:
        """The name that says how the file is read: of a link without an ending, that of the file it points to."""
        if isinstance(self.path, Path) and not self.path.suffix and self.path.is_symlink():
            return self.path.resolve().name
        return self.path.name

    @classmethod
    def at(cls, path: Path | StorePath) -> TextFile:
        """A file shown by its own path or URI."""
        return cls(path, str(path))

    def state(self) -> str:
        """Return name, size and time of the last change."""
        return f"{self.path.name}:{file_state(self.path)}"

    def read(self) -> bytes:
        """Return all that the file holds, decompressed; raises as the file system and gzip do."""
        with _open(self) as stream:
            return stream.read()


class Line(NamedTuple):
    """A line without its end. `number` counts from 1; `complete` is False where `data` was cut."""

    number: int
    data: bytes
    complete: bool


class Lines:
    """The lines of a file, or of a part of it, that are not blank; those of more than `limit` bytes are cut to it.

    Lines end in LF or CRLF; a byte order mark at the start of the file is left out; `.gz` is decompressed. Of a part
    are the lines that begin in it. Iterate once.
    """

    def __init__(self, file: TextFile, part: Part = WHOLE, limit: int = MAX_PASSAGE_BYTES) -> None:
        self._file, self._limit, self._part = file, limit, part
        self.count = 0
        """Lines so far, blank ones too."""

    def __iter__(self) -> Iterator[Line]:
        """Yield each line; it is numbered from the start of the part.

        Raises:
            ValueError: The gzip data are damaged.
        """
        try:
            with _open(self._file) as stream:
                yield from self._read(stream)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self._file.shown}: damaged gzip data after line {self.count}: {error}") from error

    def _read(self, stream: BinaryIO | gzip.GzipFile) -> Iterator[Line]:
        if self._part.start:
            # To the end of the line that the byte before the part belongs to.
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
            # To gzip it is a whole file of nothing.
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
    """A field's value in a file that says nothing of types, such as CSV."""

    __slots__ = ()


class RefusedError(ValueError):
    """A record is not usable; the message is the reason, as `kind` or `kind: detail`."""


def in_blocks(records: Iterable[T]) -> Iterator[list[T]]:
    """Yield records many at a time."""
    rest = iter(records)
    while block := list(islice(rest, _BLOCK_RECORDS)):
        yield block


def read_lines(file: TextFile, part: Part, parse: Callable[[str], Passage]) -> Reading:
    """Return the passages and bad records of the lines that begin in a part."""
    lines = Lines(file, part)
    records = ((line.number, judge(line, file, parse)) for line in lines)
    return Reading(file.shown, in_blocks(records), lambda: lines.count)


def judge(line: Line, file: TextFile, parse: Callable[[str], T]) -> T | BadRecord:
    """Parse a line, or say why it cannot be used."""
    try:
        return parse(decode(line))
    except RefusedError as refused:
        return bad_record(file.shown, line.number, str(refused), line.data)


def decode(line: Line) -> str:
    """Return a line's text; raises `RefusedError` if it is too long or not UTF-8."""
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


def passage_of(fields: Mapping[str, Any], called: Mapping[str, str], own_id: str | None) -> Passage:
    """Return the passage of a record, with the id `-` if it has none; raises `RefusedError`.

    `called` maps `title` and `text` to names of fields, and `own_id` is the field of the id.
    """
    passage_id = "-" if own_id is None else id_of(fields, (own_id,))
    title = fields.get(called.get("title", "title"))
    if "title" in called:
        first_present(fields, (called["title"],), "title")
    return checked_passage(
        passage_id,
        "" if title is None else string_of(called.get("title", "title"), title),
        text_of(fields, (called["text"],) if "text" in called else TEXT_FIELDS),
        further_of(fields, [*called.values(), own_id or ""]),
    )


def further_of(fields: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a record that are none of a passage's own, nor called as in `own`.

    Those of an object `metadata`, as BEIR has one, are the record's; of two by one name, the outer one counts.
    """
    further = {name: value for name, value in fields.items() if name not in NOT_METADATA and name not in own}
    inner = further.get("metadata")
    if not isinstance(inner, Mapping):
        return further
    del further["metadata"]
    return {**{name: value for name, value in inner.items() if name not in NOT_METADATA}, **further}


def passage_from_tsv(line: str) -> Passage:
    """Read `id<TAB>text`."""
    passage_id, text = _two_columns(line)
    return checked_passage(passage_id, "", text)


def query_from_json(line: str) -> Query:
    """Read `{"id": ..., "text": ...}`; fields are the first present of the names in `QUERY_..._FIELDS`."""
    fields = _json_object(line)
    return checked_query(id_of(fields, QUERY_ID_FIELDS), text_of(fields, QUERY_TEXT_FIELDS))


def query_from_tsv(line: str) -> Query:
    """Read `id<TAB>text`."""
    return checked_query(*_two_columns(line))


def checked_passage(passage_id: str, title: str, text: str, further: Mapping[str, Any] | None = None) -> Passage:
    """Return the passage; raises `RefusedError` for an unusable id, bad characters or nothing to read.

    Args:
        passage_id: without whitespace.
        title: may be blank where the text is not.
        text: likewise.
        further: the record's further fields.
    """
    check_id(passage_id)
    _check_characters("title", title)
    _check_characters("text", text)
    if not title.strip() and not text.strip():
        raise RefusedError("empty passage: title and text are blank")
    return Passage(passage_id, title, text, further=further or {})


def checked_query(query_id: str, text: str) -> Query:
    """Return the query; raises `RefusedError` for an unusable id, bad characters or a blank text."""
    check_id(query_id)
    _check_characters("text", text)
    if not text.strip():
        raise RefusedError("empty query: the text is blank")
    return Query(query_id, text)


def check_id(value: str) -> None:
    """Raise `RefusedError` for an id that a TREC run, whose columns are set apart by spaces, cannot carry."""
    if not value:
        raise RefusedError("bad id: it is empty")
    if _UNFIT_FOR_ID.search(value):
        raise RefusedError(f"bad id: {value[:40]!a} has whitespace or control characters")
    _check_characters("id", value)


def check_ids(values: Sequence[str]) -> None:
    """Raise as `check_id` for the first of many ids that it would refuse."""
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
    """Return the id, a string or an integer, that is in the first field present of `names`."""
    name = first_present(fields, names, "id")
    value = fields[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string_of(name, value)


def text_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the text in the first field present of `names`."""
    name = first_present(fields, names, "text")
    return string_of(name, fields[name])


def first_present(fields: Mapping[str, Any], names: tuple[str, ...], role: str) -> str:
    """Return the first of `names` that there is a field of; raises `RefusedError`, which calls the field a `role`."""
    for name in names:
        if name in fields:
            return name
    raise RefusedError(f"no {role} field: none of {', '.join(names)}")


def string_of(name: str, value: Any) -> str:
    """Return a field's value; raises `RefusedError` if it is no string."""
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
