"""Quarantine files: one JSON line {collection, source, file, line, reason, raw} per bad record.

`source` is the collection's path or URI. Several collections can share a file: a new scan replaces the lines of its own
collection only. On an object store, which cannot append, the file is a folder with one object per collection.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from diffretriever.collections.base import Collection
from diffretriever.collections.records import BadRecord
from diffretriever.core.files import exists, is_file, locked, open_input, whole_file
from diffretriever.schemas.locations import StorePath

_FIELDS = {"file", "line", "reason", "raw"}
_UNFIT_FOR_NAME = re.compile("[^A-Za-z0-9._-]")


def own_file(quarantine: Path | StorePath, collection: Collection) -> Path | StorePath:
    """Return the quarantine file of a collection: `quarantine`, or an object in it on an object store."""
    if isinstance(quarantine, Path):
        return quarantine
    digest = hashlib.blake2b(collection.location().encode(), digest_size=4).hexdigest()
    return quarantine / f"{_UNFIT_FOR_NAME.sub('_', collection.name)}-{digest}.jsonl"


def refuse_other_files(quarantine: Path | StorePath, inputs: Iterable[Path | StorePath] = ()) -> None:
    """Check that writing the quarantine file overwrites no other data.

    Raises:
        ValueError: the file is one of `inputs` (links are followed), or contains anything but bad records.
    """
    if not exists(quarantine):
        return
    for path in inputs:
        if _is_same_file(quarantine, path):
            raise ValueError(f"quarantine file {quarantine} is an input, {path}: name another file")
    if not is_file(quarantine):
        raise ValueError(f"quarantine path {quarantine} is not a file: name another")
    with open_input(quarantine) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip() and _fields_of(line) is None:
                raise ValueError(
                    f"quarantine file {quarantine} contains other data than bad records, see line {number}: "
                    "name another file, or move that one away"
                )


def _is_same_file(one: Path | StorePath, other: Path | StorePath) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return other.exists() and one.samefile(other)
    return one == other


@contextmanager
def quarantined(
    path: Path | StorePath, collection: Collection, *, append: bool = False
) -> Iterator[Callable[[BadRecord], object]]:
    """Yield a function that quarantines bad records; the file is written when the block succeeds.

    The records replace those of earlier scans of the collection, unless `append`. Lines of other collections stay,
    even if another job writes them at the same time. Raises as `refuse_other_files`.
    """
    refuse_other_files(path, collection.inputs())
    # Follow links: the linked file is replaced, and all names share one lock.
    folder = None
    if isinstance(path, Path):
        path = path.resolve()
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
    key = {"collection": collection.name, "source": collection.location()}
    with tempfile.TemporaryFile(dir=folder) as records:
        yield lambda bad: records.write(quarantine_line(bad, **key))
        records.seek(0)
        # The lock file stays: a new file would be another lock. Only one job writes an object.
        lock = nullcontext() if isinstance(path, StorePath) else locked(path.with_name(f".{path.name}.lock"))
        with lock, whole_file(path) as sink:
            sink.writelines(_lines_without(path, {} if append else key))
            shutil.copyfileobj(records, sink)


def quarantine_line(bad: BadRecord, **key: str) -> bytes:
    """Return the JSON line of a bad record; the fields of `key` come first."""
    fields = {**key, "file": bad.file, "line": bad.line, "reason": bad.reason, "raw": bad.raw}
    return (json.dumps(fields, ensure_ascii=False) + "\n").encode()


def _lines_without(path: Path | StorePath, key: dict[str, str]) -> Iterator[bytes]:
    """Yield the file's lines except those that match `key`; an empty key matches no line."""
    if not is_file(path):
        return
    with open_input(path) as stream:
        for line in stream:
            fields = _fields_of(line) or {}
            if line.strip() and not (key and fields.items() >= key.items()):
                yield line.rstrip(b"\n") + b"\n"


def _fields_of(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and fields.keys() >= _FIELDS else None
