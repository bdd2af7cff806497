"""Checksums of the files in which Lance keeps the numbers of deleted rows: it has none of its own for them.

A changed bit there hides a passage and brings another back, and nothing else would tell. A commit that deletes rows
leaves a file of checksums beside the table, before it where the files of deleted rows are there by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from diffretriever.files import files_in, json_digest, read_bytes, read_model, remove, write_text
from schemas.index import DeletionChecksums

_FOLDER = "deletions"
_FIX = "make sure by `inspect_index.py --verify` that nothing else is damaged, then remove it"


def deletion_files(fragments: Iterable[Any]) -> set[str]:
    """Return the paths, within the table, of the files that say what is deleted of fragments, by their metadata."""
    return {part.deletion_file.path(part.id) for part in fragments if part.deletion_file is not None}


def note_deletions(uri: str, table: str, files: Iterable[str]) -> None:
    """Keep the checksums of files that a commit makes or has made.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        files: their paths within the table.
    """
    sums = {name: _digest(f"{table}/{name}") for name in sorted(files)}
    if sums:
        _write(uri, sums)


def wrong_deletions(uri: str, table: str, fragments: Iterable[Any]) -> tuple[list[str], int]:
    """Return which files of deleted rows are not as they were written, and how many have no checksum.

    Args:
        uri: of the index.
        table: path or URI of its Lance table.
        fragments: metadata of those to look at.
    """
    wrong: list[str] = []
    sums: dict[str, str] = {}
    for record in _records(uri):
        try:
            sums.update(_read(record))
        except ValueError as error:
            wrong.append(str(error))
    files = sorted(deletion_files(fragments))
    known = [name for name in files if name in sums]
    wrong += [f"{name} is not what was written" for name in known if _digest(f"{table}/{name}") != sums[name]]
    return wrong, len(files) - len(known)


def forget_deletions(uri: str, table: str) -> None:
    """Join the files of checksums; leave out those of files that are gone. A damaged one stays as it is."""
    sums: dict[str, str] = {}
    read: list[str] = []
    for record in _records(uri):
        with suppress(ValueError):
            sums.update(_read(record))
            read.append(record)
    there = {f"_deletions/{file.base_name}" for file in files_in(f"{table}/_deletions")}
    kept = {name: sums[name] for name in sorted(sums.keys() & there)}
    if len(read) < 2 and kept == sums:
        return
    joined = _write(uri, kept) if kept else None
    for record in read:
        if record != joined:
            remove(record)


def _records(uri: str) -> list[str]:
    folder = f"{uri.rstrip('/')}/{_FOLDER}"
    return [f"{folder}/{file.base_name}" for file in files_in(folder) if file.extension == "json"]


def _read(record: str) -> dict[str, str]:
    try:
        files = read_model(record, DeletionChecksums, _FIX).files
    except FileNotFoundError:
        # Another process has joined it with others since.
        return {}
    if f"{json_digest(files)}.json" != PurePosixPath(record).name:
        raise ValueError(f"{record} cannot be used: it is not what was written: {_FIX}")
    return files


def _write(uri: str, sums: dict[str, str]) -> str:
    place = f"{uri.rstrip('/')}/{_FOLDER}/{json_digest(sums)}.json"
    write_text(place, DeletionChecksums(files=sums).model_dump_json())
    return place


def _digest(place: str) -> str:
    return hashlib.sha256(read_bytes(place)).hexdigest()
