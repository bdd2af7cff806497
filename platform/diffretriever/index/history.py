"""The versions of an index with their changes, and the sizes of its columns."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import lance

from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import APPENDED, REPLACED
from diffretriever.schemas.inspect import Change, VersionChange

_CHANGES: dict[Any, Change] = {
    lance.LanceOperation.Append: "appended",
    lance.LanceOperation.Update: "replaced",
    lance.LanceOperation.Delete: "deleted",
    lance.LanceOperation.Rewrite: "compacted",
    lance.LanceOperation.Restore: "restored",
}
_MESSAGES: dict[str, Change] = {APPENDED: "appended", REPLACED: "replaced"}
_MESSAGE_KEY = "__lance_commit_message"


def history(index: PassageIndex) -> list[VersionChange]:
    """Return every stored version, oldest first, with its change by Lance's transaction record."""
    changes: list[VersionChange] = []
    for version in index.dataset.versions():
        number, counts = version["version"], version["metadata"]
        transaction = _transaction(index, number)
        change = _change(transaction, number)
        rows, added = int(counts["total_rows"]), _added(change, transaction.operation if transaction else None)
        before = changes[-1].rows if changes and changes[-1].version == number - 1 else None
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
    """Return the size in bytes of each column in the data files, including deleted rows."""
    sizes = {field.id: field.bytes_on_disk for field in index.dataset.stats.data_stats().fields}
    return {field.name(): _with_children(field, sizes) for field in index.dataset.lance_schema.fields()}


def _transaction(index: PassageIndex, number: int) -> Any | None:
    try:
        return index.dataset.read_transaction(number)
    except TypeError:
        # Lance fails on a compaction of a table with one of its own vector indexes.
        return None


def _change(transaction: Any, number: int) -> Change:
    if transaction is None:
        return "other"
    message = (transaction.transaction_properties or {}).get(_MESSAGE_KEY)
    if message in _MESSAGES:
        return _MESSAGES[message]
    if isinstance(transaction.operation, lance.LanceOperation.Overwrite):
        # Other overwrites have a message.
        return "created" if number == 1 else "compressed"
    return _CHANGES.get(type(transaction.operation), "other")


def _added(change: Change, operation: Any) -> int:
    if change not in {"appended", "replaced"}:
        return 0
    is_update = isinstance(operation, lance.LanceOperation.Update)
    fragments = operation.new_fragments if is_update else operation.fragments
    return sum(int(fragment.physical_rows) for fragment in fragments)


def _removed(change: str, before: int | None, rows: int, added: int) -> int | None:
    if change in {"created", "appended", "compacted", "compressed"}:
        return 0
    return None if before is None else before + added - rows


def _with_children(field: Any, sizes: dict[int, int]) -> int:
    return sizes.get(field.id(), 0) + sum(_with_children(child, sizes) for child in field.children())
