"""Ways to look at an index and to compact it, in one process."""

from __future__ import annotations

from datetime import timedelta

from diffretriever.index import compaction
from diffretriever.index.table import PassageIndex


def ids_of(index: PassageIndex) -> list[str]:
    """The ids of all passages, in table order."""
    ids: list[str] = index.dataset.to_table(["id"]).column("id").to_pylist()
    return ids


def compact(index: PassageIndex, keep_versions_for: timedelta = timedelta(hours=1)) -> None:
    """Compact an index as the job does, in one commit."""
    tasks = compaction.plan(index.dataset)
    index.commit_compaction([compaction.execute(index.dataset.uri, task.text) for task in tasks])
    index.forget_versions(keep_versions_for)
