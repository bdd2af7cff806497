"""Lines of a corpus: passages and bad records."""

from __future__ import annotations

import gzip
import hashlib
import json
import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.collections import BadRecord, Collection, Passage, open_collection
from diffretriever.collections.records import MAX_PASSAGE_BYTES, WHOLE, Lines, TextFile

Corpus = Callable[[bytes], Collection]

GOOD = b'{"_id": "a", "title": "T", "text": "x"}'


@pytest.mark.parametrize(
    ("line", "passage"),
    [
        (GOOD, Passage("a", "T", "x")),
        (b'{"id": 7, "_id": "no", "contents": "x"}', Passage("7", "", "x")),
        (b'{"docid": -7, "text": "x", "contents": "no", "title": null}', Passage("-7", "", "x")),
        (b'{"id": "a", "title": "T", "text": " "}', Passage("a", "T", " ")),
        ('{"id": "a\\"é漢🙂", "text": "x"}'.encode(), Passage('a"é漢🙂', "", "x")),
        (b'{"id": "it\'s", "text": "x"}', Passage("it's", "", "x")),
        (b'{"id": "a", "text": "\\ud83d\\ude42"}', Passage("a", "", "🙂")),
        (b'  {"id": "a", "text": "x\\u2028y", "other": [NaN]}  ', Passage("a", "", "x\u2028y")),
    ],
)
def test_valid_lines_are_passages(corpus: Corpus, line: bytes, passage: Passage) -> None:
    assert list(corpus(line).records()) == [passage]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "a", "text": ', "malformed JSON: Expecting value at column 21"),
        (b"[" * 200_000, "malformed JSON: nested too deeply"),
        (b'{"id": ' + b"1" * 5000 + b', "text": "x"}', "malformed JSON: a number with too many digits"),
        (b'["a"]', "not an object: the line is an array"),
        (b'{"text": "x"}', "no id field: none of id, _id, docid, docno, doc_id, pid"),
        (b'{"id": "a", "title": "T"}', "no text field: none of text, contents"),
        (b'{"id": true, "text": "x"}', "wrong type: 'id' is a boolean"),
        (b'{"id": 1.5, "text": "x"}', "wrong type: 'id' is a number"),
        (b'{"id": "a", "text": "x", "title": {}}', "wrong type: 'title' is an object"),
        (b'{"id": "a", "text": "\xff"}', "invalid UTF-8: byte 0xff at byte 22"),
        (b'{"id": "a", "title": " ", "text": "\\n"}', "empty passage: title and text are blank"),
        (b'{"id": "", "text": "x"}', "bad id: it is empty"),
        (b'{"id": "a b", "text": "x"}', "bad id: 'a b' has whitespace or control characters"),
        (b'{"id": "\\ufeffa", "text": "x"}', "bad id: '\\ufeffa' has whitespace or control characters"),
        (b'{"id": "a\\ud800", "text": "x"}', "lone surrogate: in id"),
        (b'{"id": "a", "title": "x\\u0000", "text": "x"}', "NUL character: in title"),
        (b'{"id": "a", "text": "' + b"x" * MAX_PASSAGE_BYTES + b'"}', "too long: more than 1000000 bytes"),
    ],
)
def test_invalid_lines_are_bad_records_with_a_reason(corpus: Corpus, line: bytes, reason: str) -> None:
    collection = corpus(GOOD + b"\n" + line + b"\n" + GOOD)
    first, bad, last = collection.records()
    assert first == last == Passage("a", "T", "x")
    assert isinstance(bad, BadRecord)
    assert (bad.line, bad.reason) == (2, reason)
    assert bad.file.endswith("corpus.jsonl")
    assert bad.raw == line.decode(errors="replace")[:200]


def test_a_huge_line_is_not_loaded_whole(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    with path.open("wb") as stream:
        for _ in range(40):
            stream.write(b"x" * 1_000_000)
        stream.write(b"\n" + GOOD)
    tracemalloc.start()
    bad, good = open_collection(str(path)).records()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(bad, BadRecord)
    assert isinstance(good, Passage)
    assert peak < 8_000_000


def test_line_ends_blank_lines_and_byte_order_marks(corpus: Corpus) -> None:
    other = GOOD.replace(b'"a"', b'"b"')
    collection = corpus(b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n  \n" + other + b"\r\n\n\n")
    assert list(collection.records()) == [Passage("a", "T", "x"), Passage("b", "T", "x")]
    assert [line for block in collection.read(WHOLE).blocks for line, _ in block] == [1, 4]


def test_damaged_gzip_data_are_rejected(tmp_path: Path) -> None:
    data = gzip.compress(GOOD + b"\n" + GOOD.replace(b"x", bytes(range(65, 90))))
    path = tmp_path / "c.jsonl.gz"
    for damaged in (data[:-12], b"no" + data, data[:30] + b"zz"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"c\.jsonl\.gz: damaged gzip data after line"):
            list(open_collection(str(path)).records())


def test_tsv_lines(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_bytes(b'1\tan "odd text\r\n2\n3\ta\tb\n4\t \n5\tnul\x00\n')
    records = list(open_collection(str(path)).records())
    assert records[0] == Passage("1", "", 'an "odd text')
    assert [record.reason for record in records[1:] if isinstance(record, BadRecord)] == [
        "wrong column count: 1 instead of 2 (id, tab, text)",
        "wrong column count: 3 instead of 2 (id, tab, text)",
        "empty passage: title and text are blank",
        "NUL character: in text",
    ]


def test_the_digest_covers_title_and_text() -> None:
    passage = Passage("a", "é", "x")
    assert passage.digest == hashlib.blake2b("é\x1fx".encode(), digest_size=16).digest()
    assert passage.digest == Passage("b", "é", "x").digest != Passage("a", "éx", "").digest
    shifted = [Passage("a", "x\x1fy", "z"), Passage("a", "x", "y\x1fz"), Passage("a", "x\x1fy\x1fz", "")]
    assert len({each.digest for each in shifted}) == 3


JUNK = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.dictionaries(
        st.sampled_from(["id", "_id", "docid", "title", "text", "contents"]),
        st.one_of(st.text(max_size=8), st.integers(), st.none(), st.lists(st.integers(), max_size=2)),
    ).map(lambda fields: json.dumps(fields).encode()),
    st.builds(lambda i, t: json.dumps({"id": i, "text": t}).encode(), st.text(max_size=5), st.text(max_size=9)),
)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(JUNK, max_size=8), end=st.sampled_from([b"\n", b"\r\n"]))
def test_every_line_is_a_passage_or_a_bad_record(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(end.join(lines))
    records = list(chain.from_iterable(open_collection(str(path)).read(WHOLE).blocks))
    read = list(Lines(TextFile.at(path)))
    whole = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    assert len(records) == len(read) == sum(bool(line.strip()) for line in whole.split(b"\n"))
    for (number, record), line in zip(records, read, strict=True):
        assert number == line.number
        if isinstance(record, BadRecord):
            assert record.reason
            assert record.line == number
            assert len(record.raw) <= 200
        else:
            assert record.id.split() == [record.id]
            assert record.title.strip() or record.text.strip()
            assert record.digest
