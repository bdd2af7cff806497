"""Codes and postings of many fragments at once: one Ray task a fragment, on any machine that can reach the index.

A task reads its fragment in batches and writes mapped files, so what is in memory at a time is bounded by the number
of workers. Files appear whole, so a killed job is run again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from diffretriever.core.files import is_local
from diffretriever.core.progress import Progress
from diffretriever.index.derived import folders_in
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import Kind
from diffretriever.schemas.retriever import is_neural

if TYPE_CHECKING:
    from diffretriever.search.accelerate import Missing

_FEWEST_ON_RAY = 50_000
"""Passages: starting Ray takes as long as making the files of some ten thousand."""
_BYTES_OF_A_NUMBER = 2
_PAYS_BYTES = 1 << 20
"""Of vectors: fewer are streamed in milliseconds."""


def accelerate_index(index: PassageIndex) -> None:
    """Give an index the codes and postings that its searches pay for, as the last step of a job that writes to it.

    A candidate index that was calibrated then knows all passages again, new ones and those of compacted fragments.
    What a killed job did not come to, the same job makes when it is run again. Many passages are worked on in the Ray
    session at hand, or in one of its own.

    Raises:
        ValueError: as `complete` does.
    """
    if not _pays(index):
        return
    from diffretriever.search.accelerate import complete
    from diffretriever.search.dense.candidates import complete_candidates

    complete(index, make_files)
    complete_candidates(index)


def has_files(index: PassageIndex) -> bool:
    """Return whether some version of an index has codes or postings."""
    return any(folders_in(index.uri, kind) for kind in get_args(Kind))


def _pays(index: PassageIndex) -> bool:
    """Return whether searches of an index are to have files: it holds many vectors, or has some files already."""
    retriever, hidden_size = index.manifest.retriever, index.manifest.hidden_size
    if hidden_size is None or not is_neural(retriever):
        return False
    stored = len(index) * retriever.max_vectors("passage") * hidden_size * _BYTES_OF_A_NUMBER
    return stored >= _PAYS_BYTES or has_files(index)


def make_files(index: PassageIndex, missing: Sequence[Missing]) -> None:
    """Make the missing files of fragments: on Ray where there are many passages in several fragments.

    Raises:
        ValueError: the files of a fragment could not be made; those of others may be there.
    """
    from diffretriever.search.accelerate import make_missing

    total, local = sum(each.passages for each in missing), is_local(index.uri)
    # Any node reaches an object store: the cluster works on as many fragments at a time as it has CPUs for.
    most = len(os.sched_getaffinity(0)) if local else len(missing)
    at_once = 1 if total < _FEWEST_ON_RAY else min(most, len(missing))
    if at_once == 1:
        make_missing(index, missing)
        return
    from diffretriever.pipelines.cluster import ray_session
    from diffretriever.pipelines.tasks import in_tasks

    with ray_session(), Progress(f"codes and postings → {index.uri}", total) as progress:
        calls = ((index.uri, index.version, each) for each in missing)
        for passages in in_tasks(_make, calls, cpus=1, at_once=at_once, on_this_node=local):
            progress.update(passages)


def _make(uri: str, version: int, missing: Missing) -> int:
    from diffretriever.search.accelerate import make_missing

    make_missing(PassageIndex.open(uri, version), [missing])
    return missing.passages
