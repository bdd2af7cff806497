"""Files of bad records, a JSON line {collection, source, file, line, reason, raw} each; no other file is overwritten.

`source` is where the collection lies. Jobs over several collections may share a file: a new scan of a collection
replaces what the file holds of it, and nothing else. On an object store, where files cannot be added to, the file is a
folder with one object for each collection.
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
from diffretriever.schemas.places import StorePath

_FIELDS = {"file", "line", "reason", "raw"}
_UNFIT_FOR_NAME = re.compile("[^A-Za-z0-9._-]")


def own_file(quarantine: Path | StorePath, collection: Collection) -> Path | StorePath:
    """Return the file for the bad records of a collection: `quarantine` itself, or an object in that folder."""
    if isinstance(quarantine, Path):
        return quarantine
    digest = hashlib.blake2b(collection.place().encode(), digest_size=4).hexdigest()
    return quarantine / f"{_UNFIT_FOR_NAME.sub('_', collection.name)}-{digest}.jsonl"


def refuse_other_files(quarantine: Path | StorePath, inputs: Iterable[Path | StorePath] = ()) -> None:
    """Check that bad records can be put in a file without the loss of anything else.

    Raises:
        ValueError: it is one of `inputs`, by whatever name or link, or it is there and holds anything but bad records.
    """
    if not exists(quarantine):
        return
    for path in inputs:
        if _same(quarantine, path):
            raise ValueError(f"quarantine file {quarantine} is an input, {path}: name another file")
    if not is_file(quarantine):
        raise ValueError(f"quarantine file {quarantine} is there and is no file: name another")
    with open_input(quarantine) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip() and _fields_of(line) is None:
                raise ValueError(
                    f"quarantine file {quarantine} is there and holds something else than bad records, see line "
                    f"{number}: name another file, or move that one away"
                )


def _same(one: Path | StorePath, other: Path | StorePath) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return other.exists() and one.samefile(other)
    return one == other


@contextmanager
def quarantined(
    path: Path | StorePath, collection: Collection, *, keep_own: bool = False
) -> Iterator[Callable[[BadRecord], object]]:
    """Yield a function that takes the bad records of a collection. They are in the file once the block succeeds.

    They replace those of an earlier scan of the same collection, unless `keep_own`. Lines of other collections stay,
    also those that another job adds at the same time.

    Raises:
        ValueError: as `refuse_other_files` says.
    """
    refuse_other_files(path, collection.inputs())
    # Behind a link, the file that it names is to be replaced, and every name must lead to the same lock.
    folder = None
    if isinstance(path, Path):
        path = path.resolve()
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
    key = {"collection": collection.name, "source": collection.place()}
    with tempfile.TemporaryFile(dir=folder) as found:
        yield lambda bad: found.write(quarantine_line(bad, **key))
        found.seek(0)
        # The lock's file stays: a new one would be another lock. An object is of one job at a time.
        alone = nullcontext() if isinstance(path, StorePath) else locked(path.with_name(f".{path.name}.lock"))
        with alone, whole_file(path) as sink:
            sink.writelines(_lines_but(path, {} if keep_own else key))
            shutil.copyfileobj(found, sink)


def quarantine_line(bad: BadRecord, **key: str) -> bytes:
    """Return the line of a bad record, with the fields `key` before its own."""
    fields = {**key, "file": bad.file, "line": bad.line, "reason": bad.reason, "raw": bad.raw}
    return (json.dumps(fields, ensure_ascii=False) + "\n").encode()


def _lines_but(path: Path | StorePath, key: dict[str, str]) -> Iterator[bytes]:
    """Yield the file's lines but those that have all fields of `key`; an empty key is that of no line."""
    if not is_file(path):
        return
    with open_input(path) as stream:
        for line in stream:
            fields = _fields_of(line) or {}
            if line.strip() and not (key and fields.items() >= key.items()):
                yield line.rstrip(b"\n") + b"\n"


def _fields_of(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a bad record; None if the line is anything else."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and fields.keys() >= _FIELDS else None
