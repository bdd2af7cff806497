"""Compacts small fragments of an index in Ray tasks; the driver commits the results.

`compact_index` runs at the end of a job. `ray_executor.CompactionBeside` compacts while an encode job runs.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

from diffretriever.core.progress import Progress
from diffretriever.index.commits import table_uri
from diffretriever.index.compaction import execute, plan
from diffretriever.index.table import PassageIndex

# A killed driver loses these, and the running tasks.
_TASKS_PER_COMMIT = 8


def compact_index(index: PassageIndex, keep_versions: float | None = None) -> None:
    """Merge small fragments, drop deleted rows, and remove versions older than `keep_versions` days, or an hour.

    Hold the `WriterLock`. A killed job leaves a valid index, and the same job resumes. Several tasks run on Ray.

    Raises:
        ValueError: Another process changed the index; finished compactions are kept.
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
