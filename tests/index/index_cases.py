"""Ways to look at an index and to compact it, in one process."""

from __future__ import annotations

from datetime import timedelta

from diffretriever.index import compaction
from diffretriever.index.rewrite import parts_of, replace_all, write_part
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.index import IndexManifest


def ids_of(index: PassageIndex) -> list[str]:
    """The ids of all passages, in table order."""
    ids: list[str] = index.dataset.to_table(["id"]).column("id").to_pylist()
    return ids


def compact(index: PassageIndex, keep_versions_for: timedelta = timedelta(hours=1)) -> None:
    """Compact an index as the job does, in one commit."""
    tasks = compaction.plan(index.dataset)
    index.commit_compaction([compaction.execute(index.dataset.uri, task.text) for task in tasks])
    index.forget_versions(keep_versions_for)


def write_anew(index: PassageIndex, manifest: IndexManifest | None = None) -> None:
    """Rewrite all rows as a new manifest stores them, as a compress job does."""
    manifest = manifest or index.manifest
    replace_all(index, manifest, [write_part(index.uri, index.version, part, manifest) for part in parts_of(index)])
