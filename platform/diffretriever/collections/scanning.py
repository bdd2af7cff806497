"""Scans a collection once to find valid, unique and selected records.

Workers scan parts independently; this module merges the results in little memory.

Legend: N good records.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.collections.base import Collection
from diffretriever.collections.keys import KEY, keys_of_passages, repeated_ids
from diffretriever.collections.metadata import Kinds, WithMetadata
from diffretriever.collections.quarantine import quarantined
from diffretriever.collections.records import BadInputError, BadRecord, Part, Passage, bad_record
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.metadata import Columns

BadInputPolicy: TypeAlias = Literal["error", "quarantine"]
Choice: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Keys [N] of good records → bool [N], the records to keep."""

_LISTED = 5
"""Bad records listed in an error message."""
_CHECKED = 256
"""Passages per checksum."""
_CHECK_BYTES = 8


@dataclass(frozen=True, slots=True)
class PartScan:
    """The result of scanning a part, before its ids are compared with other parts."""

    part: Part
    state: str
    """`Collection.source_state` at the time of reading."""
    n_records: int
    n_lines: int
    keys_N: np.ndarray
    """`keys.KEY` of the good records."""
    bad_at: np.ndarray
    """int64 ascending, positions of bad records in the part."""
    reasons: Counter[str]
    kinds: Kinds = field(default_factory=dict)
    """Kinds of metadata values, if the columns are still unknown."""


ScanParts: TypeAlias = Callable[[Collection], Iterable[PartScan]]
"""Returns `scan_part(collection, part)` for each part of a collection, in order."""


def scan_part(collection: Collection, part: Part) -> PartScan:
    """Validate each record of a part."""
    state = collection.source_state()
    reading = collection.read(part)
    keys, bad_at = [np.zeros(0, KEY)], list[int]()
    n_records, reasons, kinds = 0, Counter[str](), Kinds()
    for block in reading.blocks:
        passages = [record for _, record in block if isinstance(record, Passage)]
        keys.append(keys_of_passages(passages))
        if isinstance(collection, WithMetadata):
            collection.add_kinds(kinds, passages)
        if len(passages) < len(block):
            for at, (_, record) in enumerate(block, start=n_records):
                if isinstance(record, BadRecord):
                    bad_at.append(at)
                    reasons[record.kind] += 1
        n_records += len(block)
    keys_N = np.concatenate(keys)
    return PartScan(part, state, n_records, reading.count_lines(), keys_N, np.array(bad_at, np.int64), reasons, kinds)


@dataclass(frozen=True, slots=True)
class ScannedPart:
    """The kept records of a part, as a bitmap in little-endian bit order; small enough to send to workers."""

    part: Part
    n_records: int
    kept_bitmap: bytes
    kept_checks: bytes
    """BLAKE2b checksums of the keys, 8 bytes per 256 kept passages."""
    source_state: str

    @property
    def n_kept(self) -> int:
        """Number of kept records."""
        return sum(byte.bit_count() for byte in self.kept_bitmap)

    def kept(self, collection: Collection) -> Iterator[Passage]:
        """Read the part again and yield the kept passages in order.

        Raises:
            ValueError: the collection changed since the scan.
        """
        passages = self._read(collection)
        # Detects a file that is rewritten during reading.
        for start in range(0, len(self.kept_checks), _CHECK_BYTES):
            group = list(islice(passages, _CHECKED))
            if _checks(keys_of_passages(group)) != self.kept_checks[start : start + _CHECK_BYTES]:
                raise _changed(collection)
            yield from group
        # Reads to the end of the part, where the state is compared again.
        assert not list(passages), "every kept passage has a check"

    def _read(self, collection: Collection) -> Iterator[Passage]:
        _refuse_changed(collection, self.source_state)
        flags = np.unpackbits(
            np.frombuffer(self.kept_bitmap, np.uint8), count=self.n_records, bitorder="little"
        ).tolist()
        n_read = 0
        for block in collection.read(self.part).blocks:
            for (_, record), is_kept in zip(block, flags[n_read : n_read + len(block)], strict=False):
                if is_kept:
                    if not isinstance(record, Passage):
                        raise _changed(collection)
                    yield record
            n_read += len(block)
        _refuse_changed(collection, self.source_state)
        if n_read != self.n_records:
            raise _changed(collection)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of scanning a collection."""

    n_records: int
    n_bad: int
    n_kept: int
    reasons: dict[str, int]
    """Number of bad records by kind of reason."""
    parts: tuple[ScannedPart, ...]
    columns: Columns = field(default_factory=dict)
    """Metadata columns of a collection `WithMetadata`."""
    left_out: tuple[str, ...] = ()
    """Fields that cannot be stored, such as lists."""

    def kept(self, collection: Collection) -> Iterator[Passage]:
        """Read the collection again and yield the kept passages in order.

        Raises:
            ValueError: the collection changed since the scan.
        """
        for part in self.parts:
            _refuse_changed(collection, part.source_state)
        return (passage for part in self.parts for passage in part.kept(collection))


def scan(
    collection: Collection,
    policy: BadInputPolicy,
    quarantine: Path | StorePath | None,
    *,
    choose: Choice | None = None,
    scan_parts: ScanParts | None = None,
) -> ScanResult:
    """Validate all records and the uniqueness of their ids, in about 16 bytes of memory per record.

    If an id is repeated, later records are bad.

    Args:
        collection: collection to read.
        policy: `error` rejects a collection with bad records; `quarantine` skips them.
        quarantine: file for bad records, as JSON lines {collection, source, file, line, reason, raw}. They replace the
            lines of an earlier scan of this collection; other lines stay.
        choose: selects among the good records of each part, in order; None keeps all.
        scan_parts: scans all parts, a second time if inferred metadata types require it; None scans in this process.

    Raises:
        BadInputError: the policy is `error` and there are bad records.
        ValueError: the collection changed during the scan, or the quarantine file is missing, an input or not a
            quarantine file.
    """
    scan_parts = scan_parts or _read_here
    if policy == "error":
        scans = _scan_all(collection, scan_parts)
        if scans.n_bad:
            raise BadInputError(scans.complaint())
        return scans.result(choose)
    if quarantine is None:
        raise ValueError("policy 'quarantine' needs a file to write the bad records to")
    with quarantined(quarantine, collection) as write:
        scans = _scan_all(collection, scan_parts)
        for bad in scans.bad_records():
            write(bad)
        return scans.result(choose)


def _read_here(collection: Collection) -> Iterator[PartScan]:
    return (scan_part(collection, part) for part in collection.parts())


def _scan_all(collection: Collection, scan_parts: ScanParts) -> _Scans:
    """Scan all parts, a second time if inferred metadata types require it."""
    scans = list(scan_parts(collection))
    if not isinstance(collection, WithMetadata):
        return _Scans(collection, scans, {}, [])
    if collection.columns is not None:
        return _Scans(collection, scans, collection.columns, [])
    inferred = collection.infer_columns(part.kinds for part in scans)
    typed = replace(collection, columns=inferred.columns)
    return _Scans(typed, scans if inferred.unchanged else list(scan_parts(typed)), inferred.columns, inferred.left_out)


def set_aside(collection: Collection, ids: Iterable[str], reason: str, quarantine: Path | StorePath) -> None:
    """Add kept passages to the quarantine file of `scan`, with a reason `kind` or `kind: detail`."""
    remaining = set(ids)
    before = 0
    with quarantined(quarantine, collection, append=True) as write:
        for part in collection.parts():
            reading = collection.read(part)
            for line, record in chain.from_iterable(reading.blocks):
                if isinstance(record, Passage) and record.id in remaining:
                    remaining.remove(record.id)
                    write(bad_record(reading.file, before + line, reason, _raw(record)))
            before += reading.count_lines()


class _Scans:
    """Merges the scans of all parts and detects repeated ids."""

    def __init__(
        self, collection: Collection, scans: Sequence[PartScan], columns: Columns, left_out: Sequence[str]
    ) -> None:
        self._collection, self._scans = collection, scans
        self._columns, self._left_out = columns, tuple(left_out)
        _refuse_changed(collection, *(each.state for each in scans))
        self._repeated, self._originals = repeated_ids([each.keys_N for each in scans])
        """Numbers of good records with a repeated id, and of the first record with that id."""
        self._reasons = sum((each.reasons for each in scans), Counter[str]())
        if len(self._repeated):
            self._reasons["duplicate id"] = len(self._repeated)
        self.n_bad = self._reasons.total()
        self._n_records = sum(each.n_records for each in scans)

    def result(self, choose: Choice | None) -> ScanResult:
        """Select the records to keep among the good ones."""
        unique_M = np.ones(sum(len(each.keys_N) for each in self._scans), bool)
        unique_M[self._repeated] = False
        parts, start = list[ScannedPart](), 0
        for each in self._scans:
            unique_N = unique_M[start : start + len(each.keys_N)]
            start += len(each.keys_N)
            chosen_N = unique_N.copy()
            if choose is not None:
                chosen_N[unique_N] = choose(each.keys_N[unique_N])
            kept = np.zeros(each.n_records, bool)
            kept[np.delete(np.arange(each.n_records), each.bad_at)] = chosen_N
            bitmap = np.packbits(kept, bitorder="little").tobytes()
            parts.append(ScannedPart(each.part, each.n_records, bitmap, _checks(each.keys_N[chosen_N]), each.state))
        return ScanResult(
            self._n_records,
            self.n_bad,
            sum(part.n_kept for part in parts),
            dict(self._reasons),
            tuple(parts),
            self._columns,
            self._left_out,
        )

    def complaint(self) -> str:
        """Return the message that lists the first bad records."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._reasons.items()))
        listed = list(islice(self.bad_records(), _LISTED))
        lines = [
            f"collection '{self._collection.name}': {self.n_bad} of {self._n_records} records are bad ({kinds})",
            *(f"  {bad}" for bad in listed),
        ]
        if self.n_bad > len(listed):
            lines.append(f"  ... and {self.n_bad - len(listed)} more")
        lines.append("Correct them, or leave them out and have them listed with --on-bad-input quarantine.")
        return "\n".join(lines)

    def bad_records(self) -> Iterator[BadRecord]:
        """Read the collection again and yield its bad records in order, including those with a repeated id."""
        if not self.n_bad:
            return
        before = 0
        firsts = dict(zip(self._repeated.tolist(), self._originals.tolist(), strict=True))
        lines = dict.fromkeys(firsts.values(), 0)
        number = 0
        for each in self._scans:
            reading = self._collection.read(each.part)
            for line, record in chain.from_iterable(reading.blocks):
                if isinstance(record, BadRecord):
                    yield replace(record, line=before + record.line)
                    continue
                if number in lines:
                    lines[number] = before + line
                if number in firsts:
                    reason = f"duplicate id: '{record.id}' is first on line {lines[firsts[number]]}"
                    yield bad_record(reading.file, before + line, reason, _raw(record))
                number += 1
            before += each.n_lines
        _refuse_changed(self._collection, *(each.state for each in self._scans))


def _checks(keys_N: np.ndarray) -> bytes:
    groups = (keys_N[start : start + _CHECKED].tobytes() for start in range(0, len(keys_N), _CHECKED))
    return b"".join(hashlib.blake2b(group, digest_size=_CHECK_BYTES).digest() for group in groups)


def _raw(record: Passage) -> str:
    return json.dumps({"id": record.id, "title": record.title, "text": record.text}, ensure_ascii=False)


def _refuse_changed(collection: Collection, *states: str) -> None:
    if set(states) - {collection.source_state()}:
        raise _changed(collection)


def _changed(collection: Collection) -> ValueError:
    return ValueError(f"collection '{collection.name}' changed while it was read: start again")
