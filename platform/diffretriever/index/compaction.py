"""Compaction: small fragments of a table joined, and deleted rows dropped.

It is planned once, for one version. Tasks of the plan touch no fragment in common, so that any process can execute any
of them; what they write is seen when the results are committed. Plan, tasks and results are JSON of Lance's own, but
which fragments go together is decided here: Lance joins neighbours only, and would leave those for good that were
committed one by one between joined ones.

Rows keep their order within a task. A joined fragment comes last in the table: Lance numbers fragments as they are
committed, and numbers are the order of the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import lance
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction, RewriteResult
from lance.optimize import CompactionTask as LanceTask

_FRAGMENT_BYTES = 4 << 30
"""What compaction makes fragments as large as."""
_FEWEST_ROWS = 1024
"""A fragment is no smaller, however large its rows are."""
# A fragment of half the size stays as it is: sizes in rows follow from what rows take at the time, and a table that
# has grown a little would be written anew otherwise.
_LARGE_ENOUGH = 0.5
_DELETED_SHARE = 0.1
"""A fragment of which more rows are deleted is written anew whatever its size."""
# What is read at a time.
_BATCH_BYTES = 16 << 20
_MOST_ROWS = 1 << 62
"""With fragments of so many rows Lance plans to join them all."""


class CompactionTask(NamedTuple):
    """Fragments to be joined, or one that has many deleted rows."""

    text: str
    """Lance's description."""
    fragments: tuple[int, ...]
    """Their numbers."""
    rows: int
    """Of theirs that are not deleted."""
    is_full: bool
    """Whether the joined fragment will be as large as fragments are meant to be."""


def plan(dataset: Any, but: Collection[int] = (), *, worn: bool = True) -> list[CompactionTask]:
    """Return what there is to do for a version of a table, in table order.

    Args:
        dataset: Lance's, of the version.
        but: numbers of fragments to leave as they are.
        worn: whether to write large fragments anew, too, if many of their rows are deleted.
    """
    limits = {"target_rows_per_fragment": _MOST_ROWS, "materialize_deletions_threshold": _DELETED_SHARE}
    planned = [json.loads(task.json()) for task in Compaction.plan(dataset, limits).tasks]
    parts = [part for each in planned for part in each["task"]["fragments"]]
    size = sum(file["file_size_bytes"] or 0 for part in parts for file in part["files"])
    row_bytes = max(1, size // max(1, sum(part["physical_rows"] for part in parts)))
    full_rows = max(_FEWEST_ROWS, _FRAGMENT_BYTES // row_bytes)
    wanted = {
        part["id"] for part in parts if _live_rows(part) < full_rows * _LARGE_ENOUGH or (worn and _is_worn(part))
    }.difference(but)
    own = {"target_rows_per_fragment": full_rows, "batch_size": max(1, _BATCH_BYTES // row_bytes)}
    return [
        _task({**each, "options": {**each["options"], **own}}, group, full_rows)
        # There are several only where a vector index of Lance's own has some fragments: it keeps those apart.
        for each in planned
        for group in _groups([part for part in each["task"]["fragments"] if part["id"] in wanted], full_rows)
        if len(group) > 1 or _is_worn(group[0])
    ]


def _deleted_rows(part: dict[str, Any]) -> int:
    return int((part.get("deletion_file") or {}).get("num_deleted_rows") or 0)


def _live_rows(part: dict[str, Any]) -> int:
    return int(part["physical_rows"]) - _deleted_rows(part)


def _is_worn(part: dict[str, Any]) -> bool:
    return _deleted_rows(part) > part["physical_rows"] * _DELETED_SHARE


def _groups(parts: Iterable[dict[str, Any]], full_rows: int) -> list[list[dict[str, Any]]]:
    """Cut fragments into groups of enough rows; the last may have fewer."""
    groups: list[list[dict[str, Any]]] = []
    rows = full_rows
    for part in parts:
        if rows >= full_rows:
            groups.append([])
            rows = 0
        groups[-1].append(part)
        rows += _live_rows(part)
    return groups


def _task(like: dict[str, Any], parts: Sequence[dict[str, Any]], full_rows: int) -> CompactionTask:
    text = json.dumps({**like, "task": {"fragments": parts}})
    rows = sum(map(_live_rows, parts))
    return CompactionTask(text, tuple(part["id"] for part in parts), rows, rows >= full_rows)


def execute(table: str, task: str) -> str:
    """Write the joined fragments of a task as files that no version owns; return the result.

    Args:
        table: URI of the Lance table.
        task: the `text` of a `CompactionTask`.

    Raises:
        OSError: there is no room for them.
    """
    planned = LanceTask.from_json(task)
    return planned.execute(lance.dataset(table, version=planned.read_version)).json()


def is_current(dataset: Any, result: str) -> bool:
    """Return whether the fragments that a result was made of are in this version as they were read."""
    parts = _fragments(result, "original_fragments")
    found = [dataset.get_fragment(part.id) for part in parts]
    return all(
        now is not None and now.metadata.to_json() == was.to_json() for now, was in zip(found, parts, strict=True)
    )


def joined(results: Sequence[str]) -> list[FragmentMetadata]:
    """Return the metadata of the fragments that results of `execute` are."""
    return [part for result in results for part in _fragments(result, "new_fragments")]


def _fragments(result: str, which: str) -> list[FragmentMetadata]:
    return [FragmentMetadata.from_json(json.dumps(item)) for item in json.loads(result)[which]]


def commit(dataset: Any, results: Sequence[str]) -> None:
    """Put joined fragments in the place of those that they were made of, all in one step; `dataset` moves on to it.

    Args:
        dataset: Lance's, of the latest version.
        results: of `execute`; each `is_current` in that version.

    Raises:
        OSError: another process committed a change to these fragments meanwhile; nothing of the results is visible.
    """
    # Lance would refuse a result that was read before any commit that names its fragments, as each of the `Committer`
    # does, though it leaves them as they are.
    moved = [json.dumps(json.loads(result) | {"read_version": dataset.version}) for result in results]
    Compaction.commit(dataset, [RewriteResult.from_json(text) for text in moved])
