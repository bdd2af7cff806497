"""One pass over a collection: which records are good, unique and wanted.

Parts of a collection are read by themselves, anywhere; what is found in them is joined here, in little memory.

Legend: N good records.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.collections.base import Collection
from diffretriever.collections.keys import KEY, passage_key, repeated_ids
from diffretriever.collections.metadata import Kinds, WithMetadata
from diffretriever.collections.quarantine import quarantined
from diffretriever.collections.records import BadInputError, BadRecord, Part, Passage
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.places import StorePath

BadInputPolicy: TypeAlias = Literal["error", "quarantine"]
Choice: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Keys [N] of good records → bool [N], which of them to keep."""

_LISTED = 5
"""Bad records that a refusal shows."""
_RAW_CHARACTERS = 200
_CHECKED = 256
"""Passages that one check is of."""
_CHECK_BYTES = 8


@dataclass(frozen=True, slots=True)
class PartScan:
    """What was found in a part, before its ids are compared with others'."""

    part: Part
    state: str
    """`Collection.source_state` when it was read."""
    n_records: int
    n_lines: int
    keys_N: np.ndarray
    """`keys.KEY` of the good records."""
    bad_at: np.ndarray
    """int64 ascending, which records of the part are bad."""
    bad: tuple[BadRecord, ...]
    """They, or the first of them; lines count from the start of the part."""
    reasons: Counter[str]
    kinds: Kinds = field(default_factory=dict)
    """Of the metadata, while its columns are not known."""


ScanParts: TypeAlias = Callable[[Collection, int | None], Iterable[PartScan]]
"""Gives `scan_part(collection, part, most_bad)` for each of a collection's parts, in order."""


def scan_part(collection: Collection, part: Part, most_bad: int | None) -> PartScan:
    """Check every record of a part by itself; of bad ones at most `most_bad` are shown, None for all."""
    state = collection.source_state()
    reading = collection.read(part)
    keys = bytearray()
    bad, bad_at, reasons = list[BadRecord](), list[int](), Counter[str]()
    n_records, kinds = 0, Kinds()
    kinds_of = collection.kinds_of if isinstance(collection, WithMetadata) else None
    for n_records, (_, record) in enumerate(reading.records, start=1):
        if isinstance(record, Passage):
            keys += passage_key(record.id, record.digest)
            for name, kind in kinds_of(record) if kinds_of and record.further else ():
                kinds.setdefault(name, {})[kind] = None
            continue
        bad_at.append(n_records - 1)
        reasons[record.kind] += 1
        if most_bad is None or len(bad) < most_bad:
            bad.append(record)
    keys_N = np.frombuffer(bytes(keys), KEY)
    return PartScan(
        part, state, n_records, reading.count_lines(), keys_N, np.array(bad_at, np.int64), tuple(bad), reasons, kinds
    )


@dataclass(frozen=True, slots=True)
class ScannedPart:
    """Which records of a part are kept; small enough to send to workers.

    Record `i`, from 0, is good if bit `i % 8` (lowest first) of byte `i // 8` of `good_bitmap` is set, and kept if that
    of `kept_bitmap` is.
    """

    part: Part
    n_records: int
    good_bitmap: bytes
    kept_bitmap: bytes
    kept_checks: bytes
    """Eight bytes of BLAKE2b for every 256 kept passages, of their keys."""
    source_state: str

    @property
    def n_kept(self) -> int:
        """How many are kept."""
        return sum(byte.bit_count() for byte in self.kept_bitmap)

    def kept(self, collection: Collection) -> Iterator[Passage]:
        """Read the part again and yield the kept passages in order, each with the id and the text that was scanned.

        Raises:
            ValueError: The collection's file is not the one that was scanned.
        """
        return self._checked(self.read(collection, self.kept_bitmap), collection)

    def _checked(self, passages: Iterator[Passage], collection: Collection) -> Iterator[Passage]:
        # A file that is rewritten while it is read may have moved a passage to where another one was.
        for start in range(0, len(self.kept_checks), _CHECK_BYTES):
            group = list(islice(passages, _CHECKED))
            keys = b"".join(passage_key(passage.id, passage.digest) for passage in group)
            if _check(keys) != self.kept_checks[start : start + _CHECK_BYTES]:
                raise _changed(collection)
            yield from group
        # To the end of the part, where its state is compared once more.
        assert not list(passages), "every kept passage has a check"

    def read(self, collection: Collection, bitmap: bytes) -> Iterator[Passage]:
        """Read the part again and yield the passages of a bitmap in order; raises as `kept` does."""
        _refuse_changed(collection, self.source_state)
        return self._reread(collection, bitmap)

    def _reread(self, collection: Collection, bitmap: bytes) -> Iterator[Passage]:
        ordinal = -1
        for ordinal, (_, record) in enumerate(collection.read(self.part).records):
            if ordinal < self.n_records and bitmap[ordinal // 8] >> (ordinal % 8) & 1:
                if not isinstance(record, Passage):
                    raise _changed(collection)
                yield record
        _refuse_changed(collection, self.source_state)
        if ordinal + 1 != self.n_records:
            raise _changed(collection)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a pass over a collection found."""

    n_records: int
    n_good: int
    n_bad: int
    n_kept: int
    reasons: dict[str, int]
    """How many records are bad for each kind of reason."""
    parts: tuple[ScannedPart, ...]
    columns: Columns = field(default_factory=dict)
    """Of the metadata, where the collection is one `WithMetadata`."""
    left_out: tuple[str, ...] = ()
    """Further fields with values that no column can have, such as lists."""

    def kept(self, collection: Collection) -> Iterator[Passage]:
        """Read the collection again and yield the kept passages in order.

        Raises:
            ValueError: The collection's file is not the one that was scanned.
        """
        for part in self.parts:
            _refuse_changed(collection, part.source_state)
        return (passage for part in self.parts for passage in part.kept(collection))

    def good(self, collection: Collection) -> Iterator[Passage]:
        """Read the collection again and yield all good passages in order, those that are not kept, too."""
        return (passage for part in self.parts for passage in part.read(collection, part.good_bitmap))


def scan(
    collection: Collection,
    policy: BadInputPolicy,
    quarantine: Path | StorePath | None,
    *,
    choose: Choice | None = None,
    scan_parts: ScanParts | None = None,
) -> ScanResult:
    """Check every record, and ids against each other; `choose` chooses among the good ones (None: all).

    Of records with the same id the first good one counts, later ones are bad. Holds 16 bytes a record in memory, and as
    much again of one part in sixteen.

    Args:
        collection: What to read.
        policy: `error` refuses a collection with a bad record; `quarantine` leaves bad records out.
        quarantine: Where `quarantine` writes the bad records as JSON lines {collection, source, file, line, reason,
            raw} when the scan is complete. They replace those of an earlier scan of this collection; the file's other
            lines stay.
        choose: Called for the good records of each part, in order.
        scan_parts: Scans the parts, and again where their records have said the types of metadata; None does it here.

    Raises:
        BadInputError: The policy is `error` and there are bad records; the message lists the first ones.
        ValueError: The collection's file changed meanwhile, no place for the quarantine is given, or the place is an
            input or holds something else than bad records.
    """
    scan_parts = scan_parts or _read_here
    if policy == "error":
        found = _found(collection, scan_parts, _LISTED)
        if found.n_bad:
            raise BadInputError(found.complaint())
        return found.result(choose)
    if quarantine is None:
        raise ValueError("policy 'quarantine' needs a file to write the bad records to")
    with quarantined(quarantine, collection) as put:
        found = _found(collection, scan_parts, None)
        for bad in found.bad_records():
            put(bad)
        return found.result(choose)


def _read_here(collection: Collection, most_bad: int | None) -> Iterator[PartScan]:
    return (scan_part(collection, part, most_bad) for part in collection.parts())


def _found(collection: Collection, scan_parts: ScanParts, most_bad: int | None) -> _Found:
    """Return what all parts have, where metadata has the types that all records say."""
    scans = list(scan_parts(collection, most_bad))
    if not isinstance(collection, WithMetadata) or collection.columns is not None:
        columns = collection.columns if isinstance(collection, WithMetadata) else None
        return _Found(collection, scans, columns or {}, [])
    known = collection.known(each.kinds for each in scans)
    typed = replace(collection, columns=known.columns)
    return _Found(typed, scans if known.as_read else list(scan_parts(typed, most_bad)), known.columns, known.left_out)


def set_aside(collection: Collection, ids: Iterable[str], reason: str, quarantine: Path | StorePath) -> None:
    """Add kept passages to the file that `scan` wrote the bad records to, for a reason that came to light later.

    Args:
        collection: That they are of.
        ids: Of the passages.
        reason: Of all of them, as `kind` or `kind: detail`.
        quarantine: The file.
    """
    wanted = set(ids)
    before = 0
    with quarantined(quarantine, collection, keep_own=True) as put:
        for part in collection.parts():
            reading = collection.read(part)
            for line, record in reading.records:
                if isinstance(record, Passage) and record.id in wanted:
                    wanted.remove(record.id)
                    put(BadRecord(reading.file, before + line, reason, _raw(record)))
            before += reading.count_lines()


class _Found:
    """All parts' scans, joined."""

    def __init__(
        self, collection: Collection, scans: Sequence[PartScan], columns: Columns, left_out: Sequence[str]
    ) -> None:
        self._collection, self._scans = collection, scans
        self._columns, self._left_out = columns, tuple(left_out)
        _refuse_changed(collection, *(each.state for each in scans))
        keys = [each.keys_N for each in scans]
        self._starts = [0, *accumulate(map(len, keys))]
        """Of each part's good records among those of all parts."""
        self._lines = [0, *accumulate(each.n_lines for each in scans)]
        again, first = repeated_ids(keys)
        self._first = dict(zip(again.tolist(), first.tolist(), strict=True))
        """Good record with an id that came before → the first one with it; both by place among all, ascending."""
        self._reasons = sum((each.reasons for each in scans), Counter[str]())
        if self._first:
            self._reasons["duplicate id"] = len(self._first)
        self.n_bad = self._reasons.total()

    def result(self, choose: Choice | None) -> ScanResult:
        """Return what is good and, of that, what is kept."""
        again = list(self._first)
        parts = []
        for number, found in enumerate(self._scans):
            good = np.ones(found.n_records, bool)
            good[found.bad_at] = False
            unique_N = np.ones(len(found.keys_N), bool)
            unique_N[np.array(self._own(number, again), np.int64) - self._starts[number]] = False
            chosen_N = unique_N.copy()
            if choose is not None:
                chosen_N[unique_N] = choose(found.keys_N[unique_N])
            kept = good.copy()
            kept[good] = chosen_N
            good[good] = unique_N
            checks = _checks(found.keys_N[chosen_N])
            parts.append(ScannedPart(found.part, found.n_records, _bits(good), _bits(kept), checks, found.state))
        n_records = sum(each.n_records for each in self._scans)
        n_kept = sum(part.n_kept for part in parts)
        return ScanResult(
            n_records,
            n_records - self.n_bad,
            self.n_bad,
            n_kept,
            dict(self._reasons),
            tuple(parts),
            self._columns,
            self._left_out,
        )

    def complaint(self) -> str:
        """Return the message that lists the first bad records."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._reasons.items()))
        n_records = sum(each.n_records for each in self._scans)
        listed = [bad for bad, _ in zip(self.bad_records(_LISTED), range(_LISTED), strict=False)]
        lines = [
            f"collection '{self._collection.name}': {self.n_bad} of {n_records} records are bad ({kinds})",
            *(f"  {bad}" for bad in listed),
        ]
        if self.n_bad > len(listed):
            lines.append(f"  ... and {self.n_bad - len(listed)} more")
        lines.append("Correct them, or leave them out and have them listed with --on-bad-input quarantine.")
        return "\n".join(lines)

    def bad_records(self, most: int | None = None) -> Iterator[BadRecord]:
        """Yield bad records in order: all, or at least the first `most`."""
        again = list(self._first)[:most]
        first_lines = self._lines_of(sorted({self._first[each] for each in again}))
        for number, found in enumerate(self._scans):
            own = self._own(number, again)
            bad = {int(at): each for at, each in zip(found.bad_at, found.bad, strict=False)}
            for at, (file, line, record) in self._records_at(number, own).items():
                first = self._first[self._starts[number] + _good_before(found, at)]
                where = f"'{record.id}' is first on line {first_lines[first]}"
                bad[at] = BadRecord(file, line, f"duplicate id: {where}", _raw(record))
            for _, each in sorted(bad.items()):
                yield replace(each, line=each.line + self._lines[number])

    def _lines_of(self, positions: Sequence[int]) -> dict[int, int]:
        """Return the line of each good record, by its place among those of all parts."""
        lines = {}
        for number, found in enumerate(self._scans):
            for at, (_, line, _) in self._records_at(number, self._own(number, positions)).items():
                lines[self._starts[number] + _good_before(found, at)] = self._lines[number] + line
        return lines

    def _own(self, number: int, positions: Sequence[int]) -> Sequence[int]:
        """Return those of ascending places among all good records that are in a part."""
        return positions[
            bisect_left(positions, self._starts[number]) : bisect_left(positions, self._starts[number + 1])
        ]

    def _records_at(self, number: int, positions: Sequence[int]) -> dict[int, tuple[str, int, Passage]]:
        """Read a part again for some good records.

        Args:
            number: of the part.
            positions: of the records among the good ones of all parts.

        Returns:
            Each by its place in the part: file, line in the part, and passage.
        """
        if not positions:
            return {}
        found = self._scans[number]
        good = np.setdiff1d(np.arange(found.n_records), found.bad_at, assume_unique=True)
        wanted = set(good[np.array(positions) - self._starts[number]].tolist())
        reading = self._collection.read(found.part)
        records = {}
        for at, (line, record) in enumerate(reading.records):
            if at in wanted:
                if not isinstance(record, Passage):
                    raise _changed(self._collection)
                records[at] = (reading.file, line, record)
        return records


def _good_before(found: PartScan, at: int) -> int:
    """Return how many records of a part before the one at `at` are good."""
    return at - int(np.searchsorted(found.bad_at, at))


def _checks(keys_N: np.ndarray) -> bytes:
    """Return the checks of kept passages with these keys."""
    return b"".join(_check(keys_N[start : start + _CHECKED].tobytes()) for start in range(0, len(keys_N), _CHECKED))


def _check(keys: bytes) -> bytes:
    return hashlib.blake2b(keys, digest_size=_CHECK_BYTES).digest()


def _bits(flags: np.ndarray) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


def _raw(record: Passage) -> str:
    fields = {"id": record.id, "title": record.title, "text": record.text[:_RAW_CHARACTERS]}
    return json.dumps(fields, ensure_ascii=False)[:_RAW_CHARACTERS]


def _refuse_changed(collection: Collection, *states: str) -> None:
    if set(states) - {collection.source_state()}:
        raise _changed(collection)


def _changed(collection: Collection) -> ValueError:
    return ValueError(f"collection '{collection.name}' changed while it was read: start again")
