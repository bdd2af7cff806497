"""What Lance knows of a table beside its rows: which versions are kept, what made each, how large the columns are."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Any

import lance

from diffretriever.index.table import PassageIndex
from schemas.inspect import Change, VersionChange

_CHANGES: dict[Any, Change] = {
    lance.LanceOperation.Append: "appended",
    lance.LanceOperation.Update: "replaced",
    lance.LanceOperation.Delete: "deleted",
    lance.LanceOperation.Rewrite: "compacted",
}


def history(index: PassageIndex) -> list[VersionChange]:
    """Return every version that is kept, oldest first, with what Lance's record of its transaction says."""
    changes: list[VersionChange] = []
    for version in index.dataset.versions():
        number, counts = version["version"], version["metadata"]
        transaction = index.dataset.read_transaction(number)
        operation = transaction.operation if transaction else None
        rows, added = int(counts["total_rows"]), _added(operation)
        before = changes[-1].rows if changes and changes[-1].version == number - 1 else None
        change = _change(operation, number)
        changes.append(
            VersionChange(
                version=number,
                # Lance gives local time without a zone.
                time=version["timestamp"].astimezone(UTC),
                rows=rows,
                fragments=int(counts["total_fragments"]),
                change=change,
                added=added,
                removed=_removed(change, before, rows, added),
            )
        )
    return changes


def column_bytes(index: PassageIndex) -> dict[str, int]:
    """Return the bytes that each column takes in the data files of the index's version, deleted rows included."""
    sizes = {field.id: field.bytes_on_disk for field in index.dataset.stats.data_stats().fields}
    return {field.name(): _with_children(field, sizes) for field in index.dataset.lance_schema.fields()}


def _change(operation: Any, number: int) -> Change:
    if isinstance(operation, lance.LanceOperation.Overwrite):
        # Only a compression ever writes a table anew.
        return "created" if number == 1 else "compressed"
    return _CHANGES.get(type(operation), "other")


def _added(operation: Any) -> int:
    if isinstance(operation, lance.LanceOperation.Append):
        return _rows(operation.fragments)
    if isinstance(operation, lance.LanceOperation.Update):
        return _rows(operation.new_fragments)
    return 0


def _removed(change: str, before: int | None, rows: int, added: int) -> int | None:
    if change in {"created", "appended", "compacted", "compressed"}:
        return 0
    return None if before is None else before + added - rows


def _rows(fragments: Iterable[Any]) -> int:
    return sum(int(fragment.physical_rows) for fragment in fragments)


def _with_children(field: Any, sizes: dict[int, int]) -> int:
    return sizes.get(field.id(), 0) + sum(_with_children(child, sizes) for child in field.children())
