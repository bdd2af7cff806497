"""Compaction: join small fragments of a table, and drop deleted rows.

A plan belongs to one version. Its tasks share no fragment, so any process can run any task; a commit publishes the
results. Tasks and results are Lance's JSON, but this module selects the fragments, because Lance joins neighbours only.

Rows keep their order within a task. A joined fragment comes last, because fragments are ordered by number.
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
"""Target size of a fragment."""
_FEWEST_ROWS = 1024
"""Minimum target, in rows."""
# Keep fragments above half the target, which varies with the mean row size.
_LARGE_ENOUGH = 0.5
_DELETED_SHARE = 0.1
"""Fragments with a larger share of deleted rows are rewritten, whatever their size."""
_BATCH_BYTES = 16 << 20
_MOST_ROWS = 1 << 62
"""Target that makes Lance plan to join all fragments."""


class CompactionTask(NamedTuple):
    """Fragments to join, or one fragment with many deleted rows."""

    text: str
    """Lance's description of the task."""
    fragments: tuple[int, ...]
    """Fragment numbers."""
    rows: int
    """Number of live rows."""
    is_full: bool
    """Whether the joined fragment reaches the target size."""


def plan(dataset: Any, but: Collection[int] = (), *, worn: bool = True) -> list[CompactionTask]:
    """Return the compaction tasks of a version, in table order, except for the fragments `but`.

    `worn`: also rewrite large fragments with many deleted rows.
    """
    limits = {"target_rows_per_fragment": _MOST_ROWS, "materialize_deletions_threshold": _DELETED_SHARE}
    planned = [json.loads(task.json()) for task in Compaction.plan(dataset, limits).tasks]
    parts = [part for task in planned for part in task["task"]["fragments"]]
    size = sum(file["file_size_bytes"] or 0 for part in parts for file in part["files"])
    row_bytes = max(1, size // max(1, sum(part["physical_rows"] for part in parts)))
    full_rows = max(_FEWEST_ROWS, _FRAGMENT_BYTES // row_bytes)
    selected = {
        part["id"] for part in parts if _live_rows(part) < full_rows * _LARGE_ENOUGH or (worn and _is_worn(part))
    }.difference(but)
    options = {"target_rows_per_fragment": full_rows, "batch_size": max(1, _BATCH_BYTES // row_bytes)}
    return [
        _task({**task, "options": {**task["options"], **options}}, group, full_rows)
        # Lance plans several tasks if one of its own indexes covers only some fragments.
        for task in planned
        for group in _groups([part for part in task["task"]["fragments"] if part["id"] in selected], full_rows)
        if len(group) > 1 or _is_worn(group[0])
    ]


def _deleted_rows(part: dict[str, Any]) -> int:
    return int((part.get("deletion_file") or {}).get("num_deleted_rows") or 0)


def _live_rows(part: dict[str, Any]) -> int:
    return int(part["physical_rows"]) - _deleted_rows(part)


def _is_worn(part: dict[str, Any]) -> bool:
    return _deleted_rows(part) > part["physical_rows"] * _DELETED_SHARE


def _groups(parts: Iterable[dict[str, Any]], full_rows: int) -> list[list[dict[str, Any]]]:
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
    """Write the joined fragments of a task (`CompactionTask.text`), uncommitted; return the result."""
    planned = LanceTask.from_json(task)
    return planned.execute(lance.dataset(table, version=planned.read_version)).json()


def is_current(dataset: Any, result: str) -> bool:
    """Return whether the source fragments of a result are unchanged in this version."""
    parts = _fragments(result, "original_fragments")
    current = [dataset.get_fragment(part.id) for part in parts]
    return all(
        latest is not None and latest.metadata.to_json() == part.to_json()
        for latest, part in zip(current, parts, strict=True)
    )


def joined(results: Sequence[str]) -> list[FragmentMetadata]:
    """Return the joined fragments of results of `execute`."""
    return [part for result in results for part in _fragments(result, "new_fragments")]


def _fragments(result: str, which: str) -> list[FragmentMetadata]:
    return [FragmentMetadata.from_json(json.dumps(item)) for item in json.loads(result)[which]]


def commit(dataset: Any, results: Sequence[str]) -> None:
    """Replace fragments of the latest version by joined ones, whose results must be current."""
    # Lance rejects results older than a commit that names their fragments, even if these are unchanged.
    rebased = [json.dumps(json.loads(result) | {"read_version": dataset.version}) for result in results]
    Compaction.commit(dataset, [RewriteResult.from_json(text) for text in rebased])
