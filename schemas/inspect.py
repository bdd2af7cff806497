"""Configs of the jobs that inspect and maintain an index, and their reports."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import PositiveFloat, PositiveInt

from diffretriever.schemas.accelerate import CandidateSettings
from diffretriever.schemas.base import Model
from diffretriever.schemas.index import IndexContents, IndexManifest
from diffretriever.schemas.locations import IndexLocation
from diffretriever.schemas.settings import JobConfig


class InspectJob(JobConfig):
    """Show an index's retriever, passages by collection, versions and size, and check it on request."""

    index: IndexLocation
    """Folder or object-store URI of the index."""
    verify: bool = False
    """Read the whole index and check ids, digests, vectors, impacts, codes and counts; exit status 1 on problems."""
    json_output: bool = False
    """Print JSON instead of text."""


class MaintainJob(JobConfig):
    """Delete passages from an index, restore an earlier version, or compact it."""

    index: IndexLocation
    """Folder or object-store URI of the index."""
    delete: tuple[str, ...] = ()
    """Ids of passages to delete; repeat the flag or separate by commas."""
    compact: bool = False
    """Join small fragments, remove deleted rows and delete old versions."""
    keep_versions: PositiveFloat | None = None
    """Age in days from which --compact deletes a version; default: an hour."""
    restore: PositiveInt | None = None
    """Version to restore (inspect_index.py lists them). Later versions remain until --compact deletes them."""


Change: TypeAlias = Literal[
    "created", "appended", "replaced", "deleted", "compacted", "compressed", "restored", "other"
]


class VersionChange(Model):
    """An available version of the index, and the change that made it."""

    version: int
    time: datetime
    """Time of the commit, UTC."""
    rows: int
    """Number of passages."""
    fragments: int
    change: Change
    """`replaced`: new rows replaced old ones in one step. `compressed`: vectors were quantised. `other`: internal
    changes of Lance, such as reserved fragment numbers before a compaction."""
    added: int
    """Passages added."""
    removed: int | None
    """Passages removed; None if the previous version has been deleted."""


class FilesContents(Model):
    """Derived files that searches read in place of the table: 8-bit codes, quantised vectors or postings."""

    fragments: int
    """Fragments with these files."""
    missing_fragments: int
    """Fragments without these files; searches read them from the table."""
    missing_rows: int
    """Passages of the fragments without these files."""
    bytes: int
    """Size of this version's files."""


class Problem(Model):
    """A kind of problem found by `--verify`."""

    kind: str
    total: int
    """Number of occurrences."""
    first: list[str]
    """Up to ten occurrences: ids of passages, or files with their problem."""


class Verification(Model):
    """The outcome of `--verify`, which checks all passages, and derived files by their checksums."""

    rows: int
    """Passages checked."""
    vectors: int
    """Vectors checked."""
    without_checksums: int = 0
    """Files of deleted rows without a checksum, such as those of a killed job."""
    problems: list[Problem]
    """Problems found; empty for a valid index."""


class IndexReport(Model):
    """The report of `inspect_index.py`."""

    index: str
    fingerprint: str
    contents: IndexContents
    columns: dict[str, int]
    """Bytes of each column in this version's data files."""
    codes: FilesContents | None
    """Files of 8-bit codes or quantised vectors; None for an index without vectors."""
    postings: FilesContents | None
    """Files of postings; None for an index without sparse scores."""
    candidates: CandidateSettings | None
    """The calibrated candidate index, if there is one."""
    versions: list[VersionChange]
    """Available versions, oldest first; compaction deletes old ones."""
    unfinished: tuple[str, ...] = ()
    """Collections whose encode job was interrupted or is running."""
    verification: Verification | None
    """Result of `--verify`; None without the flag."""
    manifest: IndexManifest
