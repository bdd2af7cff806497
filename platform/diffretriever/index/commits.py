"""The one way to commit to an index: refused where another process committed first, durable when it is done.

A version of an index in a folder survives a loss of power once its commit has returned. The files that it names are on
the disk before Lance writes its manifest. Lance writes transaction and manifest in one call, which waits for no disk:
they are synced right after it. A loss of power within the commit leaves the version before, the new one, or a manifest
without its bytes, past which `PassageIndex.restore` goes back. In a folder on NFS, the same calls reach the server.
Objects of a store are durable once they are put.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lance.commit import CommitConflictError

from diffretriever.files import is_local, sync_path

_HINT = "latest_version_hint.json"
"""File in `_versions` with the number of the newest version."""
_CONFLICTS = ("commit conflict", "incompatible transaction")
"""In the plain OSError that compaction raises for conflicts that other operations raise CommitConflictError for."""
_OWN, _ENDS = ("_transactions", "_versions"), (".txn", ".manifest")
"""Folders of a table that Lance writes to within a commit, and how the names of whole files end."""


class ChangedError(ValueError):
    """Another process committed first."""


def changed_by_another(uri: str) -> ChangedError:
    """Return the error of a job that lost to another writer."""
    return ChangedError(
        f"another process changed {uri} while this job was writing; nothing of it is lost: "
        "run the same command again to go on"
    )


@contextmanager
def commit_to(uri: str, table: str, files: Iterable[str] = ()) -> Iterator[None]:
    """Run one commit to an index; the module says what is on the disk before and after it.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        files: paths within the table of those that were written for it.

    Raises:
        OSError: there is no room for it.
        ChangedError: Lance refused this commit, of which nothing is visible then.
    """
    try:
        with _on_disk(table, files):
            yield
    except OSError as error:
        known = isinstance(error, CommitConflictError) or any(text in str(error).lower() for text in _CONFLICTS)
        if not known:
            raise
        raise changed_by_another(uri) from error


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
    new = {folder / name for name in {*_own_files(folder) - before, f"{_OWN[1]}/{_HINT}"}}
    for path in new:
        # Another process that lost takes its own away.
        with suppress(FileNotFoundError):
            sync_path(path)
    _sync([*{path.parent for path in new}, folder])
    if not before:
        # A new index is an entry of its folder, and that one of the folder above, which may be closed to us.
        sync_path(folder.parent)
        with suppress(PermissionError):
            sync_path(folder.absolute().parents[1])


def _own_files(folder: Path) -> set[str]:
    """Return the paths, within the table, of the files that Lance writes within a commit."""
    found: set[str] = set()
    for name in _OWN:
        # There may be many thousands, of which `Path` would make objects.
        with suppress(FileNotFoundError), os.scandir(folder / name) as entries:
            found.update(f"{name}/{entry.name}" for entry in entries if entry.name.endswith(_ENDS))
    return found


def _sync(paths: Iterable[Path]) -> None:
    for path in paths:
        sync_path(path)
