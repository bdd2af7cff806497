"""Artefacts on an object store: whole or not there, fetched once, told from damaged ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from pyarrow import fs

from diffretriever.artefacts import artefact as module
from diffretriever.artefacts.artefact import Artefact, DamagedError, bytes_in, folders_in, open_all, sizes_of_all


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that stands for a store: nothing is used where it lies."""
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        module, "filesystem_of", lambda uri: (fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "index")
    )
    module._store.cache_clear()
    module._known.cache_clear()
    # A store has no folders, so that none must be made.
    for name in ("index/codes/key", "index/codes/other"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(module.Artefact, "_object", _object_in_a_folder(folder))
    yield folder
    # What stands for the store must not stand for that of other tests.
    module._store.cache_clear()
    module._known.cache_clear()


def _object_in_a_folder(folder: Path) -> object:
    original = module.Artefact._object

    def made(self: Artefact, root: str, listing: module.Listing, name: str) -> str:
        path = original(self, root, listing, name)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        return path

    return made


def build(artefact: Artefact, content: bytes = b"codes") -> None:
    with artefact.build() as folder:
        (folder / "segment").mkdir()
        (folder / "segment" / "codes.bin").write_bytes(content)
        (folder / "header.json").write_text('{"format": 2}')


ARTEFACT = Artefact("s3://bucket/index", "codes/key")


def test_it_comes_back_as_it_was(store: Path) -> None:
    assert (ARTEFACT.open(), ARTEFACT.size(), ARTEFACT.header()) == (None, None, None)
    build(ARTEFACT)
    held = ARTEFACT.open()
    assert held is not None
    assert not held.folder.is_relative_to(store)
    assert (held.folder / "segment" / "codes.bin").read_bytes() == b"codes"
    size = bytes_in(store / "index/codes/key")
    assert (ARTEFACT.size(), ARTEFACT.header()) == (size, {"format": 2})
    assert folders_in(ARTEFACT.uri, "codes") == ["key", "other"]
    other = Artefact(ARTEFACT.uri, "codes/other")
    assert sizes_of_all([ARTEFACT, other]) == [size, None]
    assert [each is None for each in open_all([ARTEFACT, other])] == [False, True]
    ARTEFACT.remove()
    assert (ARTEFACT.open(), ARTEFACT.size()) == (None, None)
    ARTEFACT.remove()


def test_it_is_fetched_once(store: Path) -> None:
    build(ARTEFACT)
    first = ARTEFACT.open()
    assert first is not None
    (file,) = store.rglob("codes.bin")
    file.unlink()
    again = ARTEFACT.open()
    assert again is not None
    assert again.folder == first.folder


def test_a_killed_build_leaves_nothing_to_be_seen(store: Path) -> None:
    def dies() -> None:
        with ARTEFACT.build() as folder:
            (folder / "codes.bin").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dies()
    assert ARTEFACT.open() is None
    build(ARTEFACT)
    (store / "index/codes/key/artefact.json").unlink()
    module._known.cache_clear()
    assert ARTEFACT.open() is None, "what is put before the listing does not count"


def test_two_who_build_at_once_never_mix(store: Path) -> None:
    """The one whose listing comes last is the one that counts, with all of its files."""
    build(ARTEFACT, b"one")
    listing = (store / "index/codes/key/artefact.json").read_bytes()
    build(ARTEFACT, b"another")
    (store / "index/codes/key/artefact.json").write_bytes(listing)
    module._known.cache_clear()
    held = ARTEFACT.open()
    assert held is not None
    assert (held.folder / "segment" / "codes.bin").read_bytes() == b"one"


def test_what_was_made_anew_elsewhere_is_found(store: Path) -> None:
    build(ARTEFACT, b"one")
    assert ARTEFACT.size() is not None, "its listing is known"
    known = module._known
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr(module, "_known", lru_cache(known.__wrapped__))
        ARTEFACT.remove()
        build(ARTEFACT, b"another")
    held = ARTEFACT.open()
    assert held is not None
    assert (held.folder / "segment" / "codes.bin").read_bytes() == b"another"


def test_damage_is_told(store: Path) -> None:
    build(ARTEFACT)
    (file,) = store.rglob("codes.bin")
    file.write_bytes(b"coded")
    with pytest.raises(ValueError, match=r"codes/key: segment/codes.bin is damaged"):
        ARTEFACT.open()
    file.write_bytes(b"codes")
    assert ARTEFACT.open() is not None, "nothing of the damaged one was kept"


def test_a_damaged_copy_is_fetched_again(store: Path) -> None:
    build(ARTEFACT)
    held = ARTEFACT.open()
    assert held is not None
    (held.folder / "segment" / "codes.bin").write_bytes(b"cod")
    again = ARTEFACT.open()
    assert again is not None
    assert (again.folder / "segment" / "codes.bin").read_bytes() == b"codes"
    (again.folder / "segment" / "codes.bin").write_bytes(b"coded")
    with pytest.raises(DamagedError, match=r"segment/codes.bin is damaged"):
        ARTEFACT.check()
    ARTEFACT.check()


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/passwd"])
def test_a_listing_cannot_write_elsewhere(name: str, store: Path) -> None:
    listing = {"files": {name: {"bytes": 1, "sha256": "00"}}, "header": {}}
    (store / "index/codes/key/artefact.json").write_text(json.dumps(listing))
    with pytest.raises(ValueError, match=r"artefact.json is damaged"):
        ARTEFACT.open()


def test_files_that_are_added_later(store: Path) -> None:
    build(ARTEFACT)
    assert ARTEFACT.open_added("sketch") is None
    with ARTEFACT.adding("sketch") as folder:
        (folder / "lists").write_bytes(b"lists")
    held = ARTEFACT.open_added("sketch")
    assert held is not None
    assert (held.folder / "lists").read_bytes() == b"lists"
    ARTEFACT.remove()
    assert ARTEFACT.open_added("sketch") is None


@pytest.mark.parametrize("name", ["artefact.json", "codes.bin"])
def test_what_cannot_be_read_on_a_disk_is_damaged(name: str, tmp_path: Path) -> None:
    artefact = Artefact(str(tmp_path), "codes/key")
    with artefact.build() as folder:
        (folder / "codes.bin").write_bytes(b"codes")
    artefact.check()
    (artefact.path / name).unlink()
    (artefact.path / name).mkdir()
    with pytest.raises(DamagedError, match=f"{name} (cannot be read|has .* bytes)"):
        artefact.check()
    assert open_all([artefact]) == [None]
