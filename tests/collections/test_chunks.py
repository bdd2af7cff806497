"""Long documents in chunks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from diffretriever.collections import BadRecord, Collection, Passage, open_collection, scan, set_aside
from diffretriever.collections.chunks import ChunkedCollection
from diffretriever.pipelines.chunking import count_words

PARAGRAPHS = [f"Paragraph {i} is about roses. They are {i} years old." for i in range(6)]
LONG = "# Roses\n\n" + "\n\n".join(PARAGRAPHS)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    rows = [
        {"id": "long", "title": "Of roses", "text": LONG, "year": 2020},
        {"id": "short", "title": "", "text": "Ten words are not too many for it, are they?"},
        {"id": "bad"},
        {"id": "title", "title": "word " * 30, "text": LONG},
    ]
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def chunks(file: Path, tokens: int = 20) -> Collection:
    return ChunkedCollection(open_collection(str(file)), tokens, count_words)


def test_chunks_contain_the_whole_text_and_fit(documents: Path) -> None:
    collection = chunks(documents)
    records = list(collection.records())
    passages = [record for record in records if isinstance(record, Passage)]
    chunked = [passage for passage in passages if passage.id.startswith("long#")]
    assert [passage.id for passage in chunked] == [f"long#{number}" for number in range(1, len(chunked) + 1)]
    assert len(chunked) > 2
    assert {passage.title for passage in chunked} == {"Of roses"}
    assert [passage.extra for passage in chunked] == [{"year": 2020}] * len(chunked)
    assert " ".join(" ".join(passage.text for passage in chunked).split()) == " ".join(LONG.split())
    assert max(count_words(f"{passage.title} {passage.text}") for passage in chunked) <= 20
    assert [passage.text for passage in chunked][1:] == PARAGRAPHS[1:]
    assert [passage.id for passage in passages if "#" not in passage.id] == ["short"]
    titled = [passage for passage in passages if passage.id.startswith("title#")]
    assert max(count_words(passage.text) for passage in titled) == 10
    assert [record.line for record in records if isinstance(record, BadRecord)] == [3]
    assert list(pickle.loads(pickle.dumps(collection)).records()) == records


def test_parts_have_the_chunks_of_the_file(documents: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    collection = chunks(documents)
    whole = scan(collection, "quarantine", tmp_path / "bad.jsonl")
    monkeypatch.setattr("diffretriever.collections.base._PART_BYTES", 100)
    parts = scan(collection, "quarantine", tmp_path / "bad.jsonl")
    assert len(parts.parts) > 3
    assert list(parts.kept(collection)) == list(whole.kept(collection))
    set_aside(collection, ["title#2"], "not finite: so", tmp_path / "bad.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(line["line"], line["reason"].partition(":")[0]) for line in lines] == [
        (3, "no text field"),
        (4, "not finite"),
    ]
