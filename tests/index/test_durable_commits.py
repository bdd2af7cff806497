"""A commit to a local index is on the disk when it returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diffretriever.index.table import PassageIndex
from tests.index.compressed_cases import manifest
from tests.index.index_cases import compact, write_anew
from tests.index.test_index import add

NAME = "index"


CHANGES: dict[str, Callable[[PassageIndex], object]] = {
    "create": lambda index: PassageIndex.create(f"{index.uri}-new", manifest()),
    "clone": lambda index: index.clone(f"{index.uri}-new"),
    "append": lambda index: add(index, ["x"]),
    "replace": lambda index: add(index, ["a", "c", "d"], replaced=["a", "c", "d"]),
    "delete a passage": lambda index: index.delete(["a"]),
    "delete a fragment": lambda index: index.delete(["c", "d"]),
    "compact": compact,
    "write anew": write_anew,
    "restore": lambda index: PassageIndex.restore(index.uri, 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_syncs_all_of_its_files(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = PassageIndex.create(str(tmp_path / NAME), manifest())
    add(index, ["a", "b"])
    add(index, ["c", "d"])
    before, versions = files(tmp_path), len(manifests(tmp_path))
    synced: dict[int, int] = {}
    fsync = os.fsync

    def noted(number: int) -> None:
        fsync(number)
        synced.setdefault(os.fstat(number).st_ino, len(manifests(tmp_path)))

    monkeypatch.setattr(os, "fsync", noted)
    CHANGES[change](index)
    new = {path: inode for path, inode in files(tmp_path).items() if before.get(path) != inode}
    assert any(path.suffix == ".manifest" for path in new)
    assert [path for path, inode in new.items() if inode not in synced] == []
    assert [path.parent for path in new if path.parent.stat().st_ino not in synced] == []
    named = [path for path in new if path.parent.name in {"data", "_deletions"}]
    assert [path for path in named if synced[new[path]] > versions] == [], "synced before the manifest is there"


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def manifests(folder: Path) -> list[Path]:
    return [*folder.rglob("*.manifest")]
