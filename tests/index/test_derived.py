"""Folders of derived files on a disk and on an object store: complete or absent, and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from diffretriever.core.files import files_in, read_bytes, remove, write_bytes
from diffretriever.index.derived import (
    LISTING,
    DamagedError,
    DerivedFolder,
    folders_in,
    for_all,
    read_arrays,
    write_arrays,
)
from tests.cluster.s3 import S3


@pytest.fixture(params=["disk", "store"])
def derived(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DerivedFolder]:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    if request.param == "disk":
        yield DerivedFolder(str(tmp_path / "index"), "codes/key")
        return
    s3: S3 = request.getfixturevalue("s3")
    with s3.reached():
        yield DerivedFolder(s3.make_bucket(), "codes/key")


def build(derived: DerivedFolder, content: bytes = b"codes") -> None:
    with derived.build() as folder:
        (folder / "codes.bin").write_bytes(content)


def content(derived: DerivedFolder) -> bytes | None:
    folder = derived.open()
    return None if folder is None else (folder.folder / "codes.bin").read_bytes()


def stored(derived: DerivedFolder) -> str:
    """The place of the file of codes."""
    (info,) = [info for info in files_in(derived.location, deep=True) if info.base_name == "codes.bin"]
    return info.path if derived.is_local else f"s3://{info.path}"


def test_built_files_can_be_opened_until_they_are_removed(derived: DerivedFolder) -> None:
    assert (derived.open(), derived.size(), derived.files()) == (None, None, None)
    build(derived)
    assert (content(derived), derived.files()) == (b"codes", {"codes.bin": 5})
    assert derived.size() == sum(info.size for info in files_in(derived.location, deep=True))
    build(derived, b"newer")
    assert content(derived) == b"newer"
    other = DerivedFolder(derived.uri, "codes/other")
    assert [each is None for each in for_all(derived.uri, [derived, other], DerivedFolder.open)] == [False, True]
    with derived.below("sketch").build() as folder:
        (folder / "lists").write_bytes(b"lists")
    assert derived.below("sketch").open() is not None
    assert folders_in(derived.uri, "codes") == ["key"]
    derived.remove()
    derived.remove()
    assert (derived.open(), derived.below("sketch").open()) == (None, None)


def test_a_failed_build_changes_nothing(derived: DerivedFolder) -> None:
    build(derived)

    def fails() -> None:
        with derived.build() as folder:
            (folder / "codes.bin").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert content(derived) == b"codes"


@pytest.mark.parametrize("damage", [b"coded", b"cod", None])
def test_damaged_files_are_named(damage: bytes | None, derived: DerivedFolder) -> None:
    build(derived)
    location = stored(derived)
    remove(location) if damage is None else write_bytes(location, damage)
    with pytest.raises(DamagedError, match=r"codes/key.*: (a listed file is missing|codes.bin)"):
        derived.check()
    if not (derived.is_local and damage == b"coded"):
        with pytest.raises(DamagedError, match=r"codes/key.*: (a listed file is missing|codes.bin)"):
            derived.open()
    write_bytes(location, b"codes")
    assert content(derived) == b"codes", "no damaged copy is in the cache"


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/passwd"])
def test_a_listing_with_a_path_outside_the_folder_is_rejected(name: str, derived: DerivedFolder) -> None:
    listing = {"files": {name: {"bytes": 1, "sha256": "00"}}, "digest": "00"}
    write_bytes(f"{derived.location}/{LISTING}", json.dumps(listing).encode())
    with pytest.raises(DamagedError, match=r"listing.json is damaged"):
        derived.open()


def test_cached_files_are_fetched_again_only_if_damaged(bucket: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
        derived = DerivedFolder(bucket, "codes/key")
        build(derived)
        cached = derived.open()
        assert cached is not None
        location = stored(derived)
        remove(location)
        assert content(derived) == b"codes"
        write_bytes(location, b"codes")
        (cached.folder / "codes.bin").write_bytes(b"cod")
        assert content(derived) == b"codes"
        (cached.folder / "codes.bin").write_bytes(b"coded")
        with pytest.raises(DamagedError, match=r"codes.bin is damaged"):
            derived.check()
        derived.check()


def test_two_writers_to_a_store_leave_intact_files(bucket: str) -> None:
    derived = DerivedFolder(bucket, "codes/key")
    build(derived, b"one")
    listing = read_bytes(f"{derived.location}/{LISTING}")
    build(derived, b"another")
    write_bytes(f"{derived.location}/{LISTING}", listing)
    derived.check()


@pytest.mark.parametrize("count", [3, 20_000])
def test_arrays_are_read_as_written(count: int, tmp_path: Path) -> None:
    dtypes = {"a": np.float32, "b": np.uint16}
    rows_N = np.arange(count)
    with DerivedFolder(str(tmp_path), "codes/key").build() as folder:
        write_arrays(folder, dtypes, [{"a": rows_N, "b": rows_N[:1]}, {"a": rows_N}])
    read = read_arrays(tmp_path / "codes/key", dtypes)
    assert [array.tolist() for array in read.values()] == [[*rows_N, *rows_N], [0]]
    assert not any(array.flags.writeable for array in read.values())
