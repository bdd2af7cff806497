"""A bounded cache of fetched folders, shared by all processes of a node; evicts the least recently used.

An entry is a folder that never changes and appears by a rename. A process never evicts entries that it uses. If another
process evicts them, mapped files stay readable.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
import uuid
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from diffretriever.core.files import cache_dir, locked, whole_folder

BOUND_VARIABLE = "DIFFRETRIEVER_CACHE_GB"
"""Environment variable: maximum size of fetched files on a node, in gigabytes."""
_SHARE_OF_DISK = 0.9
"""Default bound, as a share of the space that is free or used by fetched files."""
_ABANDONED_SECONDS = 24 * 3600
"""Age at which a temporary folder counts as abandoned."""


class LocalFolder:
    """A folder that this process does not evict while the object lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep_for(self, user: object) -> None:
        """Live at least as long as `user`, which has the files mapped."""
        # A finalizer keeps its arguments alive until it has run.
        weakref.finalize(user, id, self).atexit = False


class FolderCache:
    """A cache in a folder. Safe to use from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._used: weakref.WeakValueDictionary[str, LocalFolder] = weakref.WeakValueDictionary()
        """Entries that this process uses or adds, by folder name."""
        self._fetching: dict[str, int] = {}
        """Sizes of the entries that this process is adding."""

    def get(self, key: str, size: int, fill: Callable[[Path], None]) -> LocalFolder:
        """Return the folder of a key. If it does not exist, `fill` writes its content, of `size` bytes.

        Raises:
            OSError: the disk is full.
            ValueError: the content does not fit next to the entries in use, or the bound is invalid.
        """
        target = self.root / f"{key}-{size}"
        entry = self._use(target)
        if target.is_dir():
            return entry
        # Only one of several processes fetches an entry.
        with locked(self.root / "fetching" / key[:2]):
            if not target.is_dir():
                self._make_space(target.name, size)
                try:
                    with whole_folder(target) as temporary:
                        fill(temporary)
                finally:
                    self._fetching.pop(target.name)
        return entry

    def existing(self, key: str, size: int) -> LocalFolder | None:
        """Return the folder of a key; None if it does not exist."""
        target = self.root / f"{key}-{size}"
        return self._use(target) if target.is_dir() else None

    def discard(self, entry: LocalFolder) -> None:
        """Remove a damaged folder; processes that mapped it keep its content."""
        with locked(self.root / "lock"):
            if entry.folder.is_dir():
                _remove(entry.folder)

    def _use(self, target: Path) -> LocalFolder:
        with locked(self.root / "lock"):
            if target.is_dir():
                os.utime(target)
            return self._used.setdefault(target.name, LocalFolder(target))

    def _make_space(self, name: str, size: int) -> None:
        with locked(self.root / "lock"):
            for path in self.root.glob(".*.tmp"):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
            entries = sorted(self.root.glob("[!.]*-*/"), key=lambda entry: entry.stat().st_mtime)
            sizes = {entry.name: int(entry.name.rpartition("-")[2]) for entry in entries}
            taken = sum({**self._fetching, **sizes}.values())
            bound = _bound(self.root, taken)
            for entry in entries:
                if taken + size <= bound:
                    break
                if entry.name not in self._used:
                    _remove(entry)
                    taken -= sizes[entry.name]
            if taken + size > bound and not os.environ.get(BOUND_VARIABLE):
                raise OSError(errno.ENOSPC, f"the disk is too full for {size:,} more bytes", str(self.root))
            if taken + size > bound:
                raise ValueError(
                    f"{size:,} more bytes do not fit into {self.root}: {taken:,} of {bound:,} are in use. Set "
                    f"{BOUND_VARIABLE} to more gigabytes, DIFFRETRIEVER_CACHE to a folder on a larger disk, "
                    "or search with more shards on more nodes"
                )
            self._fetching[name] = size


def shared_cache() -> FolderCache:
    """Return this node's cache, in `$DIFFRETRIEVER_CACHE` or else `~/.cache/diffretriever`."""
    return _cache_in(cache_dir() / "derived")


@lru_cache(maxsize=8)
def _cache_in(root: Path) -> FolderCache:
    return FolderCache(root)


def _bound(root: Path, taken: int) -> int:
    value = os.environ.get(BOUND_VARIABLE)
    if not value:
        return int(_SHARE_OF_DISK * (shutil.disk_usage(root).free + taken))
    try:
        gigabytes = float(value)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise ValueError(f"{BOUND_VARIABLE}={value} is not a number of gigabytes: set one such as 200 or 0.5")
    return int(gigabytes * 1e9)


def _remove(folder: Path) -> None:
    # Rename first, so that a crash leaves no partial entry.
    removed = folder.parent / f".{uuid.uuid4().hex}.tmp"
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)
