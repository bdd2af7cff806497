"""Files of a report, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet


def write_file(path: Path, content: bytes | str) -> None:
    """Write `content` (text as UTF-8) beside its place and rename: a reader never sees half a file."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write one Arrow table in the same way."""
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    write_file(path, sink.getvalue().to_pybytes())
