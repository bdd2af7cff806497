"""A full disk, told from other errors however a writer says it, and said in one sentence with what to do.

Python gives a number, Lance and safetensors words, NumPy the counts, torch where it stood in its archive; Ray wraps any
of these.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_KINDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "a file may not become so large there (`ulimit -f` says what this shell allows)",
}
"""Number → what it means to a user."""
_IN_WORDS = {
    # Rust: Lance, safetensors, tokenizers.
    **{rf"os error {number}\b": number for number in _KINDS},
    # What Ray passes on as text alone.
    **{rf"\[errno {number}\]": number for number in _KINDS},
    "no space left on device": errno.ENOSPC,
    "disk quota exceeded": errno.EDQUOT,
    # NumPy.
    r"^\d+ requested and \d+ written": errno.ENOSPC,
    r"^not enough free space to write": errno.ENOSPC,
    # torch.save
    r"pytorchstreamwriter failed|inline_container\.cc.*unexpected pos": errno.ENOSPC,
    # Ray, where it moves objects from memory to the disk.
    "outofdiskerror": errno.ENOSPC,
}
"""Pattern in an error's message, in small letters → number."""
_MEGABYTE = 1e6


class FullDiskError(OSError):
    """Something cannot be written for want of room; `str` is a sentence for a user, `filename` the place."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    def __reduce__(self) -> tuple[type[FullDiskError], tuple[int, str, str]]:
        # By `args`, as others are, it would take up what Ray Data appends to them.
        return FullDiskError, (self.errno or errno.ENOSPC, str(self.strerror), str(self.filename))


@contextmanager
def room_at(place: object) -> Iterator[None]:
    """Run what writes to `place`, a path or a URI.

    Raises:
        FullDiskError: its disk is full.
    """
    try:
        yield
    except Exception as error:
        full = full_disk(error, [place])
        if full is None or full is error:
            raise
        raise full from error


def full_disk(error: BaseException, places: Sequence[object] = ()) -> FullDiskError | None:
    """Return the error of a full disk that `error` comes from; None where it says something else.

    Args:
        error: what a writer raised, or Ray for it.
        places: where it wrote. Of several, or none, the error names that, or it is the one with the least room, of
            temporary files and this machine's cache too.
    """
    for each in causes(error):
        if isinstance(each, FullDiskError):
            return each
        number = _number_of(each)
        if number is not None:
            if len(places) == 1:
                return _told(number, places[0])
            named = str(getattr(each, "filename2", None) or getattr(each, "filename", None) or "")
            # Ray Data appends its advice to what an error was made of, which is where a file is named.
            return _told(number, named if named and "\n" not in named else _fullest(places))
    return None


def causes(error: BaseException, seen: frozenset[int] = frozenset()) -> Iterator[BaseException]:
    """Yield an error and what it comes from, what Ray has wrapped before its wrapping."""
    if id(error) in seen:
        return
    seen |= {id(error)}
    wrapped = getattr(error, "cause", None)
    context = None if error.__suppress_context__ else error.__context__
    if isinstance(wrapped, BaseException):
        yield from causes(wrapped, seen)
    yield error
    for each in (error.__cause__, context):
        if each is not None:
            yield from causes(each, seen)


def _number_of(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno in _KINDS:
        return error.errno
    text = str(error).lower()
    return next((number for pattern, number in _IN_WORDS.items() if re.search(pattern, text)), None)


def _told(number: int, place: object) -> FullDiskError:
    text = str(place)
    what = _KINDS[number]
    if "://" not in text:
        mount, free, total = _file_system(Path(text))
        what += f": {mount} on {socket.gethostname()} has {free / _MEGABYTE:,.1f} of {total / _MEGABYTE:,.1f} MB free"
    fix = "make room there, and give the same command again: it goes on from what is finished"
    return FullDiskError(number, f"{what}. Nothing that was finished before is lost; {fix}", text)


def _fullest(places: Sequence[object]) -> str:
    local = [str(place) for place in places if "://" not in str(place)]
    cache = os.environ.get("DIFFRETRIEVER_CACHE") or "~/.cache"
    candidates = [*local, str(Path(cache).expanduser()), os.environ.get("RAY_TMPDIR", ""), tempfile.gettempdir()]
    return min(filter(None, candidates), key=lambda place: _file_system(Path(place))[1])


def _file_system(path: Path) -> tuple[Path, int, int]:
    """Return where the file system of a path, which need not be there, is mounted, and its free bytes and all."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    usage = shutil.disk_usage(there)
    device = there.stat().st_dev
    for parent in there.parents:
        if parent.stat().st_dev != device:
            break
        there = parent
    return there, usage.free, usage.total
