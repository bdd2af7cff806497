"""Commits to an index: refused if another process committed first, durable when they return.

In a folder, the files that a version names are synced to the disk before Lance writes its manifest, and Lance's own
files right after it. A loss of power within a commit leaves the version before, the new one, or an empty manifest,
which `PassageIndex.restore` sets aside. Objects of a store are durable once they are put.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata

from diffretriever.core.files import is_local, sync_path

_TABLE = "passages.lance"
_HINT = "latest_version_hint.json"
"""File in `_versions` with the number of the newest version."""
_CONFLICTS = ("commit conflict", "incompatible transaction")
"""In the OSError of a conflict in compaction; other operations raise CommitConflictError."""
_OWN, _ENDS = ("_transactions", "_versions"), (".txn", ".manifest")
"""Folders of a table that Lance writes to within a commit, and the suffixes of complete files."""


class ChangedError(ValueError):
    """Another process committed first."""


def changed_by_another(uri: str) -> ChangedError:
    """Return the error of a commit that comes second."""
    return ChangedError(
        f"another process changed {uri} while this job was writing; nothing of it is lost: "
        "run the same command again to go on"
    )


def table_uri(uri: str) -> str:
    """Return the path or URI of the Lance table of the index at `uri`."""
    return f"{uri.rstrip('/')}/{_TABLE}"


@contextmanager
def commit_to(uri: str, files: Iterable[str] = ()) -> Iterator[None]:
    """Run one commit to an index, which names these files (paths within its table); raises ChangedError."""
    try:
        with _on_disk(table_uri(uri), files):
            yield
    except OSError as error:
        known = isinstance(error, CommitConflictError) or any(text in str(error).lower() for text in _CONFLICTS)
        if not known:
            raise
        raise changed_by_another(uri) from error


def receipt_of(fragments: Iterable[FragmentMetadata]) -> str:
    """Return uncommitted fragments as a JSON text of about 400 bytes each."""
    return json.dumps([fragment.to_json() for fragment in fragments])


def fragments_in(receipts: Iterable[str]) -> list[FragmentMetadata]:
    """Return the fragments of receipts, in their order."""
    return [FragmentMetadata.from_json(json.dumps(item)) for text in receipts for item in json.loads(text)]


def data_files(fragments: Iterable[Any]) -> set[str]:
    """Return the paths, within the table, of the data files of fragments, by their metadata."""
    return {f"data/{file.path}" for part in fragments for file in part.files}


@contextmanager
def _on_disk(table: str, files: Iterable[str]) -> Iterator[None]:
    if not is_local(table):
        yield
        return
    folder = Path(table)
    if written := [folder / name for name in files]:
        _sync([*written, *{path.parent for path in written}, folder])
    before = _own_files(folder)
    yield
    new = {folder / name for name in (_own_files(folder) - before) | {f"{_OWN[1]}/{_HINT}"}}
    for path in new:
        # Another process may remove the files of its refused commit.
        with suppress(FileNotFoundError):
            sync_path(path)
    _sync([*{path.parent for path in new}, folder])
    if not before:
        # A new index is a new entry of its folder, and of the folder above, which may not be readable.
        sync_path(folder.parent)
        with suppress(PermissionError):
            sync_path(folder.absolute().parents[1])


def _own_files(folder: Path) -> set[str]:
    """Return the paths, within the table, of the files that Lance writes within a commit."""
    found: set[str] = set()
    for name in _OWN:
        # `Path` would be slow for thousands of files.
        with suppress(FileNotFoundError), os.scandir(folder / name) as entries:
            found.update(f"{name}/{entry.name}" for entry in entries if entry.name.endswith(_ENDS))
    return found


def _sync(paths: Iterable[Path]) -> None:
    for path in paths:
        sync_path(path)
