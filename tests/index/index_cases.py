"""Representations by hand, and an index read and compacted in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np

from diffretriever.index import compaction
from diffretriever.index.rewrite import parts_of, replace_all, write_part
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.index import IndexManifest
from diffretriever.vectors.representations import Representations


def represented(vectors: Sequence[np.ndarray], bags: Sequence[Mapping[int, float]]) -> Representations:
    """The representations of texts with these vectors, [slots, H] each, and term weights."""
    pairs = [pair for bag in bags for pair in sorted(bag.items())]
    return replace(
        Representations.of_vectors(
            np.concatenate(vectors).astype(np.float16), [len(slots) for slots in vectors], [3] * len(vectors)
        ),
        impact_ids=np.array([term for term, _ in pairs], np.int32),
        impact_weights=np.array([weight for _, weight in pairs], np.float32),
        impact_offsets=np.cumsum([0, *map(len, bags)], dtype=np.int64),
    )


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
