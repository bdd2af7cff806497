"""Inspecting and maintaining an index: the jobs' configs, and what is found out about an index."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import PositiveFloat, PositiveInt

from diffretriever.schemas.accelerate import CandidateSettings
from diffretriever.schemas.base import Model
from diffretriever.schemas.index import IndexContents, IndexManifest
from diffretriever.schemas.places import IndexPlace
from diffretriever.schemas.settings import JobConfig


class InspectJob(JobConfig):
    """Say what is in an index: its retriever, passages by collection, versions, size; check it if asked."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    verify: bool = False
    """Read all of it and check ids, digests, vectors, impacts, codes and counts; exit status 1 if anything is wrong."""
    json_output: bool = False
    """Print JSON instead of text."""


class MaintainJob(JobConfig):
    """Delete passages from an index, go back to an earlier version, or compact it."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    delete: tuple[str, ...] = ()
    """Ids of passages to delete; repeat the flag or separate by commas."""
    compact: bool = False
    """Join small fragments, drop deleted rows, forget old versions."""
    keep_versions: PositiveFloat | None = None
    """Days after which --compact forgets a version; default: an hour."""
    restore: PositiveInt | None = None
    """Version to go back to, of those that inspect_index.py lists; what came after it stays a version until it is
    forgotten."""


Change: TypeAlias = Literal[
    "created", "appended", "replaced", "deleted", "compacted", "compressed", "restored", "other"
]


class VersionChange(Model):
    """One version of the table that is kept, and what made it."""

    version: int
    time: datetime
    """When it was committed, UTC."""
    rows: int
    """Passages in it."""
    fragments: int
    change: Change
    """`replaced`: new rows and the removal of those they replace, in one step. `compressed`: the same passages with
    codes. `other`: Lance's own bookkeeping, such as the reservation of fragment numbers before a compaction."""
    added: int
    """Passages that it brought."""
    removed: int | None
    """Passages that it took away; None where that takes the version before, which is forgotten."""


class FilesContents(Model):
    """Files that searches use in place of the table: 8-bit codes, a codec's codes, or postings."""

    fragments: int
    """Fragments of this version that have these files."""
    missing_fragments: int
    """Fragments that have none, which searches read whole from the table."""
    missing_rows: int
    """Passages in those."""
    bytes: int
    """Size of the files of this version's fragments."""


class Problem(Model):
    """One kind of thing that is wrong."""

    kind: str
    total: int
    """How often it occurs."""
    first: list[str]
    """Where it occurs first: ids of passages, or files and what is wrong with each; ten at most."""


class Verification(Model):
    """The outcome of checking an index version: every passage, and derived files by their checksums."""

    rows: int
    """Passages that were read."""
    vectors: int
    """Their vectors."""
    without_checksums: int = 0
    """Files of deleted rows that have no checksum, such as one of a job that was killed."""
    problems: list[Problem]
    """Empty where all is well."""


class IndexReport(Model):
    """What `inspect_index.py` says of an index."""

    index: str
    """Where it is."""
    fingerprint: str
    """Of the retriever that made it."""
    contents: IndexContents
    columns: dict[str, int]
    """Bytes of each column in the data files of this version."""
    codes: FilesContents | None
    """None for an index without vectors, which cannot have any."""
    postings: FilesContents | None
    """None for an index without sparse scores, which cannot have any."""
    candidates: CandidateSettings | None
    """The calibrated candidate index, if there is one."""
    versions: list[VersionChange]
    """Those that are kept, oldest first; compaction forgets old ones."""
    verification: Verification | None
    """If it was asked for."""
    manifest: IndexManifest
