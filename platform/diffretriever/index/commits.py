"""Commits to an index: rejected if another process committed first, durable when they return.

In a folder, data files are synced to disk before Lance writes the manifest, and Lance's own files right after. A power
loss during a commit leaves the old version, the new one, or an empty manifest, which `PassageIndex.restore` sets
aside. Objects in a store are durable once written.
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
"""File in `_versions` with the newest version number."""
_CONFLICTS = ("commit conflict", "incompatible transaction")
"""Texts of the OSError of a conflict in compaction; other operations raise CommitConflictError."""
_LANCE_FOLDERS, _SUFFIXES = ("_transactions", "_versions"), (".txn", ".manifest")
"""Folders that Lance writes to during a commit, and suffixes of complete files."""


class ChangedError(ValueError):
    """Another process committed first."""


def changed_by_another(uri: str) -> ChangedError:
    """Return the error of a commit that lost against another process."""
    return ChangedError(
        f"another process changed {uri} while this job was writing; finished work is kept: "
        "run the same command again to resume"
    )


def table_uri(uri: str) -> str:
    """Return the path or URI of the Lance table of the index at `uri`."""
    return f"{uri.rstrip('/')}/{_TABLE}"


@contextmanager
def commit_to(uri: str, files: Iterable[str] = ()) -> Iterator[None]:
    """Run one commit to an index; raise ChangedError on a conflict.

    `files` are the paths, within the table, of the files that the commit names.
    """
    try:
        with _on_disk(table_uri(uri), files):
            yield
    except OSError as error:
        is_conflict = isinstance(error, CommitConflictError) or any(text in str(error).lower() for text in _CONFLICTS)
        if not is_conflict:
            raise
        raise changed_by_another(uri) from error


def receipt_of(fragments: Iterable[FragmentMetadata]) -> str:
    """Return uncommitted fragments as JSON, about 400 bytes each."""
    return json.dumps([fragment.to_json() for fragment in fragments])


def fragments_in(receipts: Iterable[str]) -> list[FragmentMetadata]:
    """Return the fragments of receipts, in order."""
    return [FragmentMetadata.from_json(json.dumps(item)) for text in receipts for item in json.loads(text)]


def data_files(fragments: Iterable[Any]) -> set[str]:
    """Return the paths, within the table, of the data files of fragments."""
    return {f"data/{file.path}" for part in fragments for file in part.files}


@contextmanager
def _on_disk(table: str, files: Iterable[str]) -> Iterator[None]:
    if not is_local(table):
        yield
        return
    folder = Path(table)
    if written := [folder / name for name in files]:
        _sync([*written, *{path.parent for path in written}, folder])
    before = _lance_files(folder)
    yield
    new = {folder / name for name in (_lance_files(folder) - before) | {f"{_LANCE_FOLDERS[1]}/{_HINT}"}}
    for path in new:
        # Another process may remove the files of its rejected commit.
        with suppress(FileNotFoundError):
            sync_path(path)
    _sync([*{path.parent for path in new}, folder])
    if not before:
        # Sync the new index's entry in its parent folders, which may not be readable.
        sync_path(folder.parent)
        with suppress(PermissionError):
            sync_path(folder.absolute().parents[1])


def _lance_files(folder: Path) -> set[str]:
    paths: set[str] = set()
    for name in _LANCE_FOLDERS:
        # `Path` would be slow for thousands of files.
        with suppress(FileNotFoundError), os.scandir(folder / name) as entries:
            paths.update(f"{name}/{entry.name}" for entry in entries if entry.name.endswith(_SUFFIXES))
    return paths


def _sync(paths: Iterable[Path]) -> None:
    for path in paths:
        sync_path(path)
