"""The quarantine file: bad records of several collections."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.collections import Collection, open_collection, scan
from diffretriever.collections.quarantine import refuse_other_files

Beir = Callable[[str, int], Collection]


def beir_folder(folder: Path, n_bad: int) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    good = json.dumps({"_id": "a", "text": "x"})
    bad = [f"{{bad{number}" for number in range(n_bad)]
    (folder / "corpus.jsonl").write_text("\n".join([good, *bad]) + "\n")
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "x"}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    return folder


@pytest.fixture
def beir(tmp_path: Path) -> Beir:
    return lambda name, n_bad: open_collection(str(beir_folder(tmp_path / name, n_bad)))


def raws(path: Path) -> list[tuple[str | None, str]]:
    entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [(entry.get("collection"), entry["raw"]) for entry in entries]


def test_a_scan_replaces_the_records_of_its_collection(beir: Beir, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    older = json.dumps({"file": "f", "line": 1, "reason": "odd", "raw": "older"})
    path.write_text(older)
    for name, n_bad in (("one", 2), ("two", 1), ("one", 2), ("one", 1)):
        assert scan(beir(name, n_bad), "quarantine", path).n_bad == n_bad
    assert raws(path) == [(None, "older"), ("two", "{bad0"), ("one", "{bad0")]
    scan(beir("one", 0), "quarantine", path)
    assert raws(path) == [(None, "older"), ("two", "{bad0")]


def test_collections_are_told_apart_by_their_resolved_path(
    beir: Beir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.jsonl"
    for parent in "xy":
        scan(beir(f"{parent}/same", 1), "quarantine", path)
    assert raws(path) == [("same", "{bad0")] * 2
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x" / "link").symlink_to("same")
    for spelling in ("same", "./same/", "../x/same", "link"):
        scan(open_collection(spelling), "quarantine", Path("../bad.jsonl"))
        assert raws(path) == [("same", "{bad0")] * 2


def test_a_failed_scan_does_not_change_the_file(beir: Beir, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    scan(beir("one", 2), "quarantine", path)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        scan(beir("one", 1), "quarantine", path, choose=lambda keys: keys[len(keys) // 0])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("target", "alias"),
    [
        ("corpus.jsonl", "none"),
        ("queries.jsonl", "link"),
        ("qrels/test.tsv", "hard link"),
        ("queries.jsonl", "relative path"),
    ],
)
def test_an_input_is_not_overwritten(beir: Beir, tmp_path: Path, target: str, alias: str) -> None:
    collection, file = beir("one", 2), tmp_path / "one" / target
    before = file.read_bytes()
    path = tmp_path / "other"
    if alias == "link":
        path.symlink_to(file)
    elif alias == "hard link":
        os.link(file, path)
    else:
        path = file if alias == "none" else tmp_path / "one" / "qrels" / ".." / target
    with (
        patch.object(type(collection), "read", side_effect=AssertionError("the collection is read")),
        pytest.raises(ValueError, match=r"quarantine file .* is an input"),
    ):
        scan(collection, "quarantine", path)
    assert file.read_bytes() == before == path.read_bytes()


@pytest.mark.parametrize("content", [b"method: bm25\n", b"PK\x03\x04\xff", b'{"id": "a", "text": "x"}\n', b"[1]"])
def test_other_files_are_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="contains other data than bad records, see line 1"):
        refuse_other_files(path)
    with pytest.raises(ValueError, match="is not a file"):
        refuse_other_files(tmp_path)
