"""An index's small fragments joined by Ray tasks on any machine; the driver commits what they have written.

A fragment of a few gigabytes is some hundred blocks of an encode job. `ray_executor.CompactionBeside` joins them while
such a job runs: its blocks are written and committed one by one, so that little is lost with a worker, and the table
has few fragments all the same. `compact_index` does what is left at the end.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

from diffretriever.core.progress import Progress
from diffretriever.index.commits import table_uri
from diffretriever.index.compaction import execute, plan
from diffretriever.index.table import PassageIndex

# What a killed driver loses beside the tasks that run.
_TASKS_PER_COMMIT = 8


def compact_index(index: PassageIndex, keep_versions: float | None = None) -> None:
    """Join small fragments, drop deleted rows, forget versions older than `keep_versions` days or an hour.

    Hold the `WriterLock`. A job that is killed leaves a valid index, and the same job run again does what is left.
    Several tasks run in the current Ray session, or in one of its own; a single one runs here.

    Raises:
        ValueError: another process changed the index meanwhile; what was joined before stays.
    """
    tasks = plan(index.dataset)
    if tasks:
        from diffretriever.pipelines.tasks import call_each

        results = call_each(execute, [(table_uri(index.uri), task.text) for task in tasks])
        with Progress(f"compacting {index.uri}", sum(task.rows for task in tasks)) as progress:
            # In the order of the plan: rows are in the same order wherever a job is killed.
            for first in range(0, len(tasks), _TASKS_PER_COMMIT):
                index.commit_compaction(list(islice(results, _TASKS_PER_COMMIT)))
                progress.update(sum(task.rows for task in tasks[first : first + _TASKS_PER_COMMIT]))
    index.forget_versions(timedelta(hours=1) if keep_versions is None else timedelta(days=keep_versions))
