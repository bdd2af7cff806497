"""The ledger of finished work: entries whole or absent, on a disk or an object store, of one job."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffretriever.core.files
from diffretriever.core.ledger import IDENTITY_FILE, Ledger

JOB = {"source": "a.jsonl", "settings": {"depth": 100, "modes": ("dense", "sparse")}}


@pytest.fixture(params=["path", "file URI", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give a place for a ledger: a folder, the same as a URI, or a store in memory."""
    if request.param == "store":
        yield f"fsspec+memory://bucket/{uuid.uuid4().hex}/ledger"
        return
    place = tmp_path / "a b%20c" / "ledger"
    yield str(place) if request.param == "path" else place.as_uri()


def test_entries_are_read_back(folder: str) -> None:
    ledger = Ledger(folder)
    assert not ledger.has("one")
    assert ledger.get("one") is None
    assert ledger.get_json("one") is None
    ledger.put("one", b"\x00\xff")
    ledger.put("deep/er/two", b"")
    ledger.put_json("three.json", {"a": [1, 0.1, None, "ü"]})
    again = Ledger(folder)
    assert all(map(again.has, ("one", "deep/er/two", "three.json")))
    assert again.get("one") == b"\x00\xff"
    assert again.get("deep/er/two") == b""
    assert again.get_json("three.json") == {"a": [1, 0.1, None, "ü"]}
    assert again.get("three.json") == b'{"a": [1, 0.1, null, "\\u00fc"]}\n'


def test_entries_are_removed(folder: str) -> None:
    ledger = Ledger(folder)
    for name in ("one", "1/a", "1/b", "2/a"):
        ledger.put(name, b"")
    for name in ("one", "1", "was never there"):
        ledger.remove(name)
    assert [ledger.has(name) for name in ("one", "1/a", "1/b", "2/a")] == [False, False, False, True]
    ledger.clear()
    assert not ledger.has("2/a")
    ledger.clear()


def test_another_job_is_rejected_with_the_differences(folder: str) -> None:
    Ledger(folder, JOB).put("one", b"1")
    other = {"source": "a.jsonl", "settings": {"depth": 50, "modes": ("dense", "sparse")}, "seed": 1}
    with pytest.raises(ValueError, match="another job") as refused:
        Ledger(folder, other)
    lines = str(refused.value).splitlines()
    assert lines[1:3] == ["  seed: None != 1", "  settings.depth: 100 != 50"]
    assert len(lines) == 4
    assert "--output" in lines[3]
    assert Ledger(folder, JOB).get("one") == b"1", "nothing was touched"


@pytest.mark.parametrize("found", [b"0123456789abcdef", b"", b"[]", b"\xff"])
def test_a_damaged_identity_is_rejected(found: bytes, folder: str) -> None:
    Ledger(folder).put(IDENTITY_FILE, found)
    with pytest.raises(ValueError, match="give another --output, or remove the folder"):
        Ledger(folder, JOB)


def test_a_damaged_entry_is_named(folder: str) -> None:
    ledger = Ledger(folder)
    ledger.put("one.json", b'{"cut sho')
    with pytest.raises(ValueError, match=r"ledger/one\.json cannot be used: .*: remove it"):
        ledger.get_json("one.json")


def test_json_digests_never_change() -> None:
    assert diffretriever.core.files.json_digest(["a", 1, {"b": None}]) == "d0e1216b46c28840"
