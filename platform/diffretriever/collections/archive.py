"""Unpacking a zip once, refusing members that would land outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from diffretriever.files import cache_dir, whole_folder


def unpack(path: Path) -> Path:
    """Return the folder with the zip's content, unpacked to the cache at the first call.

    A zip of another place, size or modification time is another zip.

    Raises:
        ValueError: It is not a zip, is damaged, or has a member that is a link or points outside.
    """
    status = path.stat()
    key = f"{path.absolute()}\n{status.st_size}\n{status.st_mtime_ns}"
    target = cache_dir() / "unpacked" / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    if target.is_dir():
        return target
    try:
        with zipfile.ZipFile(path) as archive, whole_folder(target) as folder:
            for member in archive.infolist():
                _extract(archive, member, folder, status.st_mtime_ns)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot be unpacked: {error}") from error
    return target


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path, mtime_ns: int) -> None:
    _refuse_unsafe(archive, member)
    target = folder / member.filename
    if member.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    # The zip's own time: unpacking it again must not look like a change of the collection.
    os.utime(target, ns=(mtime_ns, mtime_ns))


def _refuse_unsafe(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = PurePosixPath(member.filename)
    outside = name.is_absolute() or ".." in name.parts or "\\" in member.filename or ":" in member.filename
    if outside or stat.S_ISLNK(member.external_attr >> 16):
        raise ValueError(f"{archive.filename}: refused: member '{member.filename}' is a link or points outside")
