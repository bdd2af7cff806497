"""Where downloads and unpacked collections are kept, and writing so that nobody sees half a file."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def cache_dir() -> Path:
    """Return `$DIFFRETRIEVER_CACHE`, or else `~/.cache/diffretriever`."""
    chosen = os.environ.get("DIFFRETRIEVER_CACHE") or "~/.cache/diffretriever"
    return Path(chosen).expanduser().absolute()


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `target` only if the block succeeds."""
    temporary = _temporary_beside(target)
    try:
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill that appears at `target` only if the block succeeds."""
    temporary = _temporary_beside(target)
    temporary.mkdir()
    try:
        yield temporary
        _move_unless_there(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_beside(target: Path) -> Path:
    # mkstemp would make it readable by its owner only, and renaming keeps that.
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{uuid.uuid4().hex}.tmp"


def _move_unless_there(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        # Another process built the same folder first: its content is as good as ours.
        if not target.is_dir():
            raise
