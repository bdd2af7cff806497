"""Folders of Markdown, plain text and HTML as collections."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import pytest

from diffretriever.collections import BadInputError, BadRecord, Collection, Passage, open_collection, scan
from diffretriever.core.files import write_text

FILES = {
    "b.md": "---\ntitle: Roses, pruned\ntags: [garden]\n---\n\n# Other\n\nIn winter.\r\n",
    "a b/50% #1.md": "```\n# no heading\n```\nText\n## The *heading* ##\n",
    "a b/underlined.MD": "\nTomatoes\n===\nSun.\n",
    "plain.txt": "\ufeffno title\n",
    "page.html": (
        "<!doctype html><html><head><title>A &amp;\n B</title><style>p {}</style></head><body><script>var x;</script>"
        "<p>One <b>two</b>\nthree<p>four<br>five<ul><li>six<li>seven</ul><pre>if x:\n  y</pre><!-- no -->"
        "<table><tr><td>8</td><td>9</td></tr></table></body></html>"
    ),
    "empty.htm": "",
    ".hidden/x.md": "hidden",
    ".hidden.md": "hidden",
    "picture.png": "",
    "LICENSE": "",
    "a b/picture.png": "",
}
PASSAGES = [
    Passage("a%20b/50%25%20%231.md", "The *heading*", FILES["a b/50% #1.md"]),
    Passage("a%20b/underlined.MD", "Tomatoes", FILES["a b/underlined.MD"]),
    Passage("b.md", "Roses, pruned", "# Other\n\nIn winter.\n"),
    Passage("empty.htm", "empty", ""),
    Passage("page.html", "A & B", "One two three\n\nfour\nfive\n\nsix\nseven\n\nif x:\ny\n\n8 9"),
    Passage("plain.txt", "plain", "no title\n"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "notes" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return tmp_path / "notes"


def records(collection: Collection) -> list[Passage | BadRecord]:
    return list(collection.records())


def test_files_are_passages(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "circle").symlink_to(folder)
    collection = open_collection(str(folder))
    assert records(collection) == PASSAGES
    assert records(pickle.loads(pickle.dumps(collection))) == PASSAGES
    assert (collection.name, collection.splits(), collection.location()) == ("notes", [], str(folder))
    assert scan(collection, "error", None).n_kept == len(PASSAGES)
    assert len(collection.inputs()) == len(PASSAGES)
    assert caplog.messages == [f"{folder}: 3 files are no texts and are left out: 2 .png, 1 without suffix"]
    with pytest.raises(ValueError, match="no queries, so no split 'test'"):
        collection.queries("test")


def test_html_is_read_in_its_character_set(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_bytes('<meta charset="windows-1252"><p>„ünï“'.encode("windows-1252"))
    (tmp_path / "b.html").write_text('<meta charset="utf-8"><p>„ünï“', "utf-8")
    assert [each.text for each in records(open_collection(str(tmp_path))) if isinstance(each, Passage)] == ["„ünï“"] * 2


def test_front_matter_is_metadata(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntitle: Roses\nyear: 2020\ntags: [a]\n1: one\n---\nPrune them.")
    (record,) = records(open_collection(str(tmp_path)))
    assert isinstance(record, Passage)
    assert (record.title, record.text) == ("Roses", "Prune them.")
    assert record.extra == {"year": 2020, "tags": ["a"], "1": "one"}


BAD = {
    "latin.txt": (b"\xe9t\xe9", "invalid UTF-8: byte 0xe9 at byte 1"),
    "latin.html": (b"<p>\xe9t\xe9", "invalid UTF-8: byte 0xe9 at byte 4"),
    "named.html": (b"<meta charset=klingon><p>x", "wrong character set: it names 'klingon'"),
    "utf16.md": ("x".encode("utf-16"), "invalid UTF-8"),
    "binary.txt": (b"a\0b", "NUL character: in text"),
    os.fsdecode(b"\xe9.txt"): (b"x", "lone surrogate: in id"),
}


@pytest.mark.parametrize("name", BAD)
def test_unreadable_files_are_named(name: str, tmp_path: Path) -> None:
    content, reason = BAD[name]
    (tmp_path / "good.txt").write_text("x")
    try:
        (tmp_path / name).write_bytes(content)
    except OSError:
        pytest.skip("this file system requires names in UTF-8")
    shown = os.fsencode(tmp_path / name).decode(errors="replace")
    with pytest.raises(BadInputError) as refused:
        scan(open_collection(str(tmp_path)), "error", None)
    assert "1 of 2 records are bad" in str(refused.value)
    assert f"  {shown}:1: {reason}" in str(refused.value)
    assert scan(open_collection(str(tmp_path)), "quarantine", tmp_path / "bad.jsonl").n_kept == 1


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nA line, and no front matter\n---\n",
        "---\nnot: a: mapping\n---\n",
        "---\n" + "[" * 2_000 + "\n---\n",
        "---\ndate: 2026-99-99\ntitle: [\n---\n",
        "---\nnever: closed\n",
    ],
)
def test_invalid_front_matter_stays_in_the_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(text)
    (record,) = records(open_collection(str(tmp_path / "a.md")))
    assert isinstance(record, Passage)
    assert record.text == text


def test_texts_on_a_store(bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    for name, text in FILES.items():
        write_text(f"{bucket}/notes/{name}".replace("%", "%25").replace(" ", "%20").replace("#", "%23"), text)
    with caplog.at_level(logging.WARNING):
        collection = open_collection(f"{bucket}/notes")
    assert records(collection) == PASSAGES
    assert scan(collection, "error", None).n_kept == len(PASSAGES)
    assert caplog.messages == [f"{bucket}/notes: 3 files are no texts and are left out: 2 .png, 1 without suffix"]
    one = open_collection(f"{bucket}/notes/b.md")
    assert records(one) == [PASSAGES[2]]
    assert (one.name, one.location()) == ("b", f"{bucket}/notes/b.md")
