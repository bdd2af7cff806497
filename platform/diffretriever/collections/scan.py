"""One pass over a collection: which records are good, unique and wanted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from diffretriever.collections.base import BadInputError, BadRecord, Collection, Passage
from diffretriever.collections.quarantine import quarantined
from schemas.places import StorePath

BadInputPolicy: TypeAlias = Literal["error", "quarantine"]

_LISTED = 5
"""Bad records that a refusal shows."""
_RAW_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a pass over `records()` found; small enough to send to workers.

    Record `i`, from 0, is kept if bit `i % 8` (lowest first) of byte `i // 8` of `kept_bitmap` is set.
    """

    n_records: int
    n_good: int
    n_bad: int
    n_kept: int
    reasons: dict[str, int]
    """How many records are bad for each kind of reason."""
    kept_bitmap: bytes
    source_state: str

    def kept(self, collection: Collection) -> Iterator[Passage]:
        """Read the collection again and yield the kept passages in order.

        Raises:
            ValueError: The collection's file is not the one that was scanned.
        """
        _refuse_changed(collection, self.source_state)
        return self._reread(collection)

    def _reread(self, collection: Collection) -> Iterator[Passage]:
        ordinal = -1
        for ordinal, record in enumerate(collection.records()):
            if ordinal < self.n_records and self.kept_bitmap[ordinal // 8] >> (ordinal % 8) & 1:
                if not isinstance(record, Passage):
                    raise _changed(collection)
                yield record
        _refuse_changed(collection, self.source_state)
        if ordinal + 1 != self.n_records:
            raise _changed(collection)


def scan(
    collection: Collection,
    policy: BadInputPolicy,
    quarantine: Path | StorePath | None,
    *,
    keep: Callable[[Passage], bool] | None = None,
) -> ScanResult:
    """Check every record, and ids against each other; `keep` chooses among the good ones (None: all).

    Of records with the same id the first good one counts, later ones are bad. Holds all ids in memory.

    Args:
        collection: What to read.
        policy: `error` refuses a collection with a bad record; `quarantine` leaves bad records out.
        quarantine: Where `quarantine` writes the bad records as JSON lines {collection, source, file, line, reason,
            raw} when the scan is complete. They replace those of an earlier scan of this collection; the file's other
            lines stay.
        keep: Called once for each good record, in order.

    Raises:
        BadInputError: The policy is `error` and there are bad records; the message lists the first ones.
        ValueError: The collection's file changed meanwhile, no place for the quarantine is given, or the place is an
            input or holds something else than bad records.
    """
    if policy == "error":
        return _refuse_bad(collection, keep)
    if quarantine is None:
        raise ValueError("policy 'quarantine' needs a file to write the bad records to")
    with quarantined(quarantine, collection) as put:
        return _walk(collection, keep, put)


def set_aside(collection: Collection, ids: Iterable[str], reason: str, quarantine: Path | StorePath) -> None:
    """Add kept passages to the file that `scan` wrote the bad records to, for a reason that came to light later.

    Args:
        collection: That they are of.
        ids: Of the passages.
        reason: Of all of them, as `kind` or `kind: detail`.
        quarantine: The file.
    """
    wanted = set(ids)
    with quarantined(quarantine, collection, keep_own=True) as put:
        for file, line, record in collection.located_records():
            if isinstance(record, Passage) and record.id in wanted:
                wanted.remove(record.id)
                put(BadRecord(file, line, reason, _raw(record)))


def _refuse_bad(collection: Collection, keep: Callable[[Passage], bool] | None) -> ScanResult:
    listed: list[BadRecord] = []

    def list_first(bad: BadRecord) -> None:
        if len(listed) < _LISTED:
            listed.append(bad)

    result = _walk(collection, keep, list_first)
    if result.n_bad:
        raise BadInputError(_complaint(collection, result, listed))
    return result


def _walk(
    collection: Collection, keep: Callable[[Passage], bool] | None, on_bad: Callable[[BadRecord], object]
) -> ScanResult:
    state = collection.source_state()
    first_lines: dict[str, int] = {}
    reasons: Counter[str] = Counter()
    bitmap = bytearray()
    n_records = n_kept = 0
    for file, number, found in collection.located_records():
        if n_records % 8 == 0:
            bitmap.append(0)
        record = _unless_duplicate(found, file, number, first_lines)
        if isinstance(record, BadRecord):
            reasons[record.kind] += 1
            on_bad(record)
        elif keep is None or keep(record):
            bitmap[-1] |= 1 << n_records % 8
            n_kept += 1
        n_records += 1
    _refuse_changed(collection, state)
    n_bad = reasons.total()
    return ScanResult(n_records, n_records - n_bad, n_bad, n_kept, dict(reasons), bytes(bitmap), state)


def _unless_duplicate(
    record: Passage | BadRecord, file: str, line: int, first_lines: dict[str, int]
) -> Passage | BadRecord:
    if isinstance(record, BadRecord):
        return record
    first = first_lines.setdefault(record.id, line)
    if first == line:
        return record
    return BadRecord(file, line, f"duplicate id: '{record.id}' is first on line {first}", _raw(record))


def _raw(record: Passage) -> str:
    fields = {"id": record.id, "title": record.title, "text": record.text[:_RAW_CHARACTERS]}
    return json.dumps(fields, ensure_ascii=False)[:_RAW_CHARACTERS]


def _refuse_changed(collection: Collection, state: str) -> None:
    if collection.source_state() != state:
        raise _changed(collection)


def _changed(collection: Collection) -> ValueError:
    return ValueError(f"collection '{collection.name}' changed while it was read: start again")


def _complaint(collection: Collection, result: ScanResult, listed: list[BadRecord]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.reasons.items()))
    lines = [
        f"collection '{collection.name}': {result.n_bad} of {result.n_records} records are bad ({kinds})",
        *(f"  {bad}" for bad in listed),
    ]
    if result.n_bad > len(listed):
        lines.append(f"  ... and {result.n_bad - len(listed)} more")
    lines.append("Correct them, or leave them out and have them listed with --on-bad-input quarantine.")
    return "\n".join(lines)
