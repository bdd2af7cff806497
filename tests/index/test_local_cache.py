"""The cache of fetched folders is bounded and keeps the files in use."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diffretriever.index.local_cache import BOUND_VARIABLE, FolderCache

KB = 1000
CLOCK = itertools.count(1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderCache:
    """One that may take 3 KB."""
    monkeypatch.setenv(BOUND_VARIABLE, "0.000003")
    return FolderCache(tmp_path / "cache")


def writer(size: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "data").write_bytes(b"x" * size)

    return write


def refuse(folder: Path) -> None:
    raise AssertionError("it was there")


def use(cache: FolderCache, *keys: str) -> None:
    """Fetch folders of 1 KB, and be done with them."""
    for key in keys:
        entry = cache.get(key, KB, writer(KB))
        # Folders are used within the same tick of the clock here.
        os.utime(entry.folder, times=(now := next(CLOCK), now))
        del entry
    gc.collect()


def names(cache: FolderCache) -> set[str]:
    return {path.name for path in cache.root.glob("*-*/")}


def test_the_least_recently_used_folder_is_evicted(cache: FolderCache) -> None:
    use(cache, "a", "b", "c")
    cache.get("a", KB, refuse)
    use(cache, "d")
    assert names(cache) == {"a-1000", "c-1000", "d-1000"}
    assert len(names(cache)) * KB <= 3 * KB


def test_folders_in_use_are_not_evicted(cache: FolderCache) -> None:
    class Mapped:
        pass

    user = Mapped()
    use(cache, "a", "b", "c")
    cache.get("a", KB, refuse).keep_for(user)
    os.utime(cache.root / "a-1000", (0, 0))
    use(cache, "d", "e")
    assert names(cache) == {"a-1000", "d-1000", "e-1000"}
    del user
    os.utime(cache.root / "a-1000", (0, 0))
    use(cache, "f")
    assert "a-1000" not in names(cache)


def test_folders_that_do_not_fit_are_rejected(cache: FolderCache, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [cache.get(key, KB, writer(KB)) for key in "abc"]
    with pytest.raises(ValueError, match=r"1,000 more bytes do not fit .* 3,000 of 3,000 are in use.*CACHE_GB"):
        cache.get("d", KB, writer(KB))
    assert len(names(cache)) == len(entries)
    monkeypatch.setenv(BOUND_VARIABLE, "plenty")
    with pytest.raises(ValueError, match="not a number of gigabytes"):
        cache.get("d", KB, writer(KB))
    monkeypatch.delenv(BOUND_VARIABLE)
    assert cache.get("d", KB, writer(KB)).folder.is_dir()


def test_a_partly_removed_folder_is_not_used(cache: FolderCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it makes room, a process leaves a folder under another name."""
    use(cache, "a", "b", "c")
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        use(cache, "d")
    assert names(cache) == {"b-1000", "c-1000", "d-1000"}
    (left,) = cache.root.glob(".*.tmp")
    os.utime(left, (0, 0))
    use(cache, "e")
    assert not left.exists()


def test_folders_being_fetched_count_towards_the_bound(cache: FolderCache) -> None:
    def fetch_another(folder: Path) -> None:
        with pytest.raises(ValueError, match="2,000 of 3,000 are in use"):
            cache.get("b", 2 * KB, refuse)

    cache.get("a", 2 * KB, fetch_another)
    assert names(cache) == {"a-2000"}
    gc.collect()
    cache.get("b", 2 * KB, writer(2 * KB))
    assert names(cache) == {"b-2000"}, "it was fetched, and is not in use any more"
