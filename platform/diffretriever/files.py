"""Small files at a local path or an object-store URI, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyarrow import fs


def is_local(uri: str) -> bool:
    """True for a plain path."""
    return "://" not in uri


def write_text(uri: str, text: str) -> None:
    """Write `text`; a local file is written beside its place and renamed, an object-store put is atomic itself."""
    if is_local(uri):
        _write_local(Path(uri), text)
        return
    filesystem, path = fs.FileSystem.from_uri(uri)
    with filesystem.open_output_stream(path) as stream:
        stream.write(text.encode())


def _write_local(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)
