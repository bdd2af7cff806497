"""An index's small fragments joined by Ray tasks on any machine; the driver commits what they have written.

A fragment of a few gigabytes is some hundred blocks of an encode job. `ray_executor.CompactionBeside` joins them while
such a job runs: its blocks are written and committed one by one, so that little is lost with a worker, and the table
has few fragments all the same. `compact_index` does what is left at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice

import pyarrow as pa

from diffretriever.index.compaction import CompactionTask, execute, plan
from diffretriever.index.table import PassageIndex, table_uri
from diffretriever.progress import Progress
from diffretriever.schemas.settings import RayAddress

# What a killed driver loses beside the tasks that run.
_TASKS_PER_COMMIT = 8


def compact_index(index: PassageIndex, config: RayAddress, keep_versions: float | None = None) -> None:
    """Join small fragments, drop deleted rows, and forget old versions. Hold the `WriterLock`.

    A job that is killed leaves a valid index, and the same job run again does what is left. Several tasks run in the
    Ray session at hand, or in one of its own; a single one runs here.

    Args:
        index: to change.
        config: of Ray.
        keep_versions: days after which a version is forgotten; None: an hour.

    Raises:
        ValueError: another process changed the index meanwhile; what was joined before stays.
        RuntimeError: results were lost on the way; run again.
    """
    tasks = plan(index.dataset)
    if len(tasks) == 1:
        index.commit_compaction([execute(table_uri(index.uri), tasks[0].text)])
    elif tasks:
        from diffretriever.pipelines.cluster import ray_session

        with ray_session(config), Progress(f"compacting {index.uri}", sum(task.rows for task in tasks)) as progress:
            _run(index, tasks, progress)
    index.forget_versions(timedelta(hours=1) if keep_versions is None else timedelta(days=keep_versions))


def _run(index: PassageIndex, tasks: Sequence[CompactionTask], progress: Progress) -> None:
    """Commit results in the order of the plan, so that rows are in the same order wherever a job is killed."""
    results = _in_order(_results(index.uri, tasks))
    done = 0
    while group := list(islice(results, _TASKS_PER_COMMIT)):
        index.commit_compaction(group)
        progress.update(sum(task.rows for task in tasks[done : done + len(group)]))
        done += len(group)
    if done != len(tasks):
        raise RuntimeError(f"{len(tasks)} compaction tasks went in and {done} came out: run the same command again")


def _results(uri: str, tasks: Sequence[CompactionTask]) -> Iterator[tuple[int, str]]:
    """Yield the place in the plan and the result of each task, as it is done."""
    from diffretriever.pipelines.ray_executor import rows_of_tasks

    rows = [{"number": number, "task": task.text} for number, task in enumerate(tasks)]
    for done in rows_of_tasks(_execute, rows, {"table": table_uri(uri)}):
        yield done["number"], done["result"]


def _execute(rows: pa.Table, table: str) -> pa.Table:
    results = [execute(table, task) for task in rows.column("task").to_pylist()]
    return pa.table({"number": rows.column("number"), "result": results})


def _in_order(results: Iterable[tuple[int, str]]) -> Iterator[str]:
    waiting: dict[int, str] = {}
    first = 0
    for number, result in results:
        waiting[number] = result
        while first in waiting:
            yield waiting.pop(first)
            first += 1
