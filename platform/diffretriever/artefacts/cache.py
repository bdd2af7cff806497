"""A bounded folder of fetched files that all processes of a machine share: least recently used folders go first.

An entry is a folder that never changes; it appears by a rename. A process says which entries it has mapped by a file
of the entry's name in a folder of its own, where it holds a lock for as long as it lives: what the dead had is free.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import shutil
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from diffretriever.files import cache_dir, locked, whole_folder

BOUND_VARIABLE = "DIFFRETRIEVER_CACHE_GB"
"""Environment variable: gigabytes that fetched files may take on a machine."""
_SHARE_OF_DISK = 0.9
"""Of what is free or taken by fetched files, where the variable is not set."""
_ALIVE = ".alive"
"""File that a process has locked while it lives."""
_ABANDONED_SECONDS = 24 * 3600
"""A folder half-made for longer than this belongs to no running process."""


class HeldFolder:
    """A folder of files that stays where it is for as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep_for(self, user: object) -> None:
        """Live at least as long as `user`, which has the files mapped."""
        # What a finalizer is given stays alive until it has run.
        weakref.finalize(user, _nothing, self).atexit = False


class _Entry(NamedTuple):
    used: float
    """Time of the last use."""
    size: int
    path: Path


class FolderCache:
    """The folder and its rules. Safe to use from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._room = 0
        """Bytes that this process may add before it looks at the folder again."""
        self._fetching: dict[str, int] = {}
        """Sizes of the entries that this process is adding."""
        self._room_lock = threading.Lock()

    def get(self, key: str, size: int, fill: Callable[[Path], None]) -> HeldFolder:
        """Return the folder of a key, made by `fill` if it is not there.

        Args:
            key: a file name that differs wherever the content does.
            size: of the content, in bytes.
            fill: writes the content into an empty folder; what it raises is passed on, and nothing is left.

        Raises:
            OSError: the disk has no room for it.
            ValueError: it does not fit into the bound that was given, beside what is in use, or that is no number.
        """
        target = self._entry(key, size)
        held = self._hold(target)
        if target.is_dir():
            return held
        # Several processes that want the same fetch it once.
        with locked(self.root / "fetching" / key[:2]):
            if not target.is_dir():
                self._make_room(target.name, size)
                try:
                    with whole_folder(target) as temporary:
                        fill(temporary)
                finally:
                    self._fetching.pop(target.name)
        return held

    def held(self, key: str, size: int) -> HeldFolder | None:
        """Return the folder of a key as `get` does; None where it is not there."""
        target = self._entry(key, size)
        return self._hold(target) if target.is_dir() else None

    def _entry(self, key: str, size: int) -> Path:
        return self.root / f"{key}-{size}"

    def discard(self, held: HeldFolder) -> None:
        """Take a damaged folder out, so that it is made anew; who has it mapped keeps what it has."""
        with locked(self.root / "lock"):
            if held.folder.is_dir():
                _remove(held.folder)

    def _hold(self, target: Path) -> HeldFolder:
        holder = _holder(self.root)
        with locked(self.root / "lock"):
            holder.hold(target.name)
            if target.is_dir():
                os.utime(target)
        held = HeldFolder(target)
        # The lock of a process that has ended says as much.
        weakref.finalize(held, holder.release, target.name).atexit = False
        return held

    def _make_room(self, name: str, size: int) -> None:
        with self._room_lock, locked(self.root / "lock"):
            if size <= self._room:
                self._room -= size
                self._fetching[name] = size
                return
            self._remove_abandoned()
            entries, in_use = sorted(self._entries()), self._in_use()
            there = {entry.path.name: entry.size for entry in entries}
            taken = sum({**self._fetching, **there}.values())
            bound = _bound(self.root, taken)
            for entry in entries:
                if taken + size <= bound:
                    break
                if entry.path.name not in in_use:
                    _remove(entry.path)
                    taken -= entry.size
            if taken + size > bound and not os.environ.get(BOUND_VARIABLE):
                raise OSError(errno.ENOSPC, f"the disk is too full for {size:,} more bytes", str(self.root))
            if taken + size > bound:
                raise ValueError(
                    f"{size:,} more bytes do not fit into {self.root}: {taken:,} are in use of {bound:,} that it may "
                    f"take. Set {BOUND_VARIABLE} to more gigabytes, DIFFRETRIEVER_CACHE to a folder on a larger disk, "
                    "or search with more shards on more machines"
                )
            # Others may add to the folder meanwhile.
            self._room = (bound - taken - size) // 2
            self._fetching[name] = size

    def _entries(self) -> Iterator[_Entry]:
        for path in self.root.glob("*-*/"):
            size = path.name.rpartition("-")[2]
            if not path.name.startswith(".") and size.isdigit():
                yield _Entry(path.stat().st_mtime, int(size), path)

    def _in_use(self) -> set[str]:
        """Return the names of entries that living processes have mapped; forget those of the dead."""
        names: set[str] = set()
        for user in (self.root / "users").glob("*/"):
            if _is_alive(user):
                names.update(file.name for file in user.iterdir())
            else:
                shutil.rmtree(user, ignore_errors=True)
        return names

    def _remove_abandoned(self) -> None:
        for path in self.root.glob(".*.tmp"):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def shared_cache() -> FolderCache:
    """Return the cache of this machine, in `$DIFFRETRIEVER_CACHE` or else `~/.cache/diffretriever`."""
    return _cache_in(cache_dir() / "artefacts")


@lru_cache(maxsize=8)
def _cache_in(root: Path) -> FolderCache:
    return FolderCache(root)


class _Holder:
    """What one process has mapped, told to all others."""

    def __init__(self, pid: int, root: Path) -> None:
        self._pid = pid
        self.folder = root / "users" / f"{pid}-{uuid.uuid4().hex}"
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        with locked(root / "lock"):
            self.folder.mkdir(parents=True)
            # Open, and so locked, until the process ends.
            fcntl.flock(os.open(self.folder / _ALIVE, os.O_CREAT | os.O_WRONLY), fcntl.LOCK_EX)

    def hold(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
            (self.folder / name).touch()

    def release(self, name: str) -> None:
        # A forked process has copies of its parent's objects, whose ends are none of the parent's.
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]
                (self.folder / name).unlink(missing_ok=True)


_holders: dict[tuple[int, Path], _Holder] = {}
_holders_lock = threading.Lock()


def _holder(root: Path) -> _Holder:
    """Return the one of this process."""
    with _holders_lock:
        key = (os.getpid(), root)
        # A person may remove the whole cache at any time.
        if key not in _holders or not _holders[key].folder.is_dir():
            _holders[key] = _Holder(*key)
        return _holders[key]


def _is_alive(user: Path) -> bool:
    try:
        with (user / _ALIVE).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _bound(root: Path, taken: int) -> int:
    given = os.environ.get(BOUND_VARIABLE)
    if not given:
        return int(_SHARE_OF_DISK * (shutil.disk_usage(root).free + taken))
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise ValueError(f"{BOUND_VARIABLE}={given} is no number of gigabytes: give one as 200 or 0.5")
    return int(gigabytes * 1e9)


def _remove(folder: Path) -> None:
    # Killed in the middle, it must not leave an entry that looks whole.
    gone = folder.parent / f".{uuid.uuid4().hex}.tmp"
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _nothing(_: object) -> None: ...
