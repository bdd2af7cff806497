from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.collections import BadInputError, Collection, Passage, open_collection, scan
from diffretriever.collections.base import FileCollection
from diffretriever.collections.keys import passage_key
from diffretriever.collections.records import WHOLE
from diffretriever.collections.scanning import Choice, PartScan, scan_part

Corpus = Callable[[bytes], Collection]


def line(passage_id: str, text: str = "x") -> bytes:
    return json.dumps({"id": passage_id, "text": text}).encode() + b"\n"


def only(*ids: str) -> Choice:
    hashes = [passage_key(i, b"")[:10] for i in ids]
    return lambda keys: np.array([key.tobytes()[:10] in hashes for key in keys], bool)


def but(passage_id: str) -> Choice:
    return lambda keys: ~only(passage_id)(keys)


def test_the_error_lists_the_first_bad_records_and_the_fix(corpus: Corpus) -> None:
    collection = corpus(line("a") + b"{\n" * 4 + line("b") + line("a") + b"[]\n\xff\n")
    with pytest.raises(BadInputError) as caught:
        scan(collection, "error", None)
    message = str(caught.value).splitlines()
    assert message[0] == (
        "collection 'corpus': 7 of 9 records are bad "
        "(1 duplicate id, 1 invalid UTF-8, 4 malformed JSON, 1 not an object)"
    )
    assert [entry.split(":")[1] for entry in message[1:6]] == ["2", "3", "4", "5", "7"]
    assert message[5].endswith("corpus.jsonl:7: duplicate id: 'a' is first on line 1")
    assert message[6] == "  ... and 2 more"
    assert message[7].endswith("--on-bad-input quarantine.")


def test_quarantine_lists_every_bad_record(corpus: Corpus, tmp_path: Path) -> None:
    collection = corpus(line("a") + b"\n{ \xff\n" + line("b") + line("a", "é") + line("c"))
    path = tmp_path / "deep" / "bad.jsonl"
    result = scan(collection, "quarantine", path, choose=but("b"))
    assert (result.n_records, result.n_bad, result.n_kept) == (5, 2, 2)
    assert result.reasons == {"invalid UTF-8": 1, "duplicate id": 1}
    (part,) = result.parts
    assert part.kept_bitmap == bytes([0b10001])
    assert [passage.id for passage in result.kept(collection)] == ["a", "c"]
    bad = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    assert [(entry["line"], entry["reason"]) for entry in bad] == [
        (3, "invalid UTF-8: byte 0xff at byte 3"),
        (5, "duplicate id: 'a' is first on line 1"),
    ]
    assert bad[0]["raw"] == "{ \ufffd"
    assert "é" in bad[1]["raw"]
    assert all(entry["file"].endswith("corpus.jsonl") for entry in bad)
    assert {entry["collection"] for entry in bad} == {"corpus"}
    assert sorted(each.name for each in path.parent.iterdir()) == [".bad.jsonl.lock", "bad.jsonl"]


@pytest.mark.parametrize(("at", "change"), [(255, ("p{}", "other")), (256, ("q{}", "x"))])
def test_a_file_rewritten_while_it_is_read_is_rejected(corpus: Corpus, at: int, change: tuple[str, str]) -> None:
    lines = [line(f"p{number}") for number in range(600)]
    collection = corpus(b"".join(lines))
    result = scan(collection, "error", None)
    lines[at] = line(change[0].format(at), change[1])
    corpus(b"".join(lines))
    with patch.object(FileCollection, "source_state", return_value=result.parts[0].source_state):
        kept: list[Passage] = []
        with pytest.raises(ValueError, match="changed while it was read"):
            kept.extend(result.kept(collection))
    assert [passage.id for passage in kept] == [f"p{number}" for number in range(at // 256 * 256)]


def test_a_file_that_changes_during_the_scan_is_rejected(corpus: Corpus) -> None:
    collection = corpus(line("a"))

    def change(collection: Collection) -> Iterator[PartScan]:
        yield scan_part(collection, WHOLE)
        corpus(line("a") + line("b"))

    with pytest.raises(ValueError, match="changed while it was read"):
        scan(collection, "error", None, scan_parts=change)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from([line("a"), line("b"), line("c", "é" * 9), b"\n", b"{\n", b"[]\r\n"]), max_size=20),
    end=st.sampled_from([b"", line("d")[:-1], b"{"]),
    part_bytes=st.integers(1, 60),
)
def test_parts_of_any_size_have_the_records_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bytes, part_bytes: int
) -> None:
    root = tmp_path_factory.getbasetemp()
    (root / "parts.jsonl").write_bytes(b"".join(lines) + end)
    collection = open_collection(str(root / "parts.jsonl"))
    in_parts = patch("diffretriever.collections.base._PART_BYTES", part_bytes)
    whole = scan(collection, "quarantine", root / "whole-bad.jsonl", choose=but("b"))
    with in_parts:
        joined = scan(collection, "quarantine", root / "parts-bad.jsonl", choose=but("b"))
    assert (root / "parts-bad.jsonl").read_bytes() == (root / "whole-bad.jsonl").read_bytes()
    assert list(joined.kept(collection)) == list(whole.kept(collection))
    assert replace(joined, parts=()) == replace(whole, parts=())
    if whole.n_bad:
        messages = []
        for context in (nullcontext(), in_parts):
            with context, pytest.raises(BadInputError) as caught:
                scan(collection, "error", None)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
