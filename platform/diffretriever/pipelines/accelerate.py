"""Write missing 8-bit codes and postings, one Ray task per fragment.

Tasks read a fragment in batches, so memory is bounded by the number of workers. A killed job can be run again.
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
    """Write the codes and postings that make searches of the index faster, after a job has written to it.

    Also extends a calibrated candidate index to new and compacted fragments. Resumes after a killed job.

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
    retriever, hidden_size = index.manifest.retriever, index.manifest.hidden_size
    if hidden_size is None or not is_neural(retriever):
        return False
    stored = len(index) * retriever.max_vectors("passage") * hidden_size * _BYTES_OF_A_NUMBER
    return stored >= _PAYS_BYTES or has_files(index)


def make_files(index: PassageIndex, missing: Sequence[Missing]) -> None:
    """Write missing files of fragments: on Ray for many passages in several fragments.

    Raises:
        ValueError: A file could not be written; files of other fragments may exist.
    """
    from diffretriever.search.accelerate import make_missing

    total, local = sum(files.passages for files in missing), is_local(index.uri)
    # Any node reaches an object store: the cluster works on as many fragments at a time as it has CPUs for.
    most = len(os.sched_getaffinity(0)) if local else len(missing)
    at_once = 1 if total < _FEWEST_ON_RAY else min(most, len(missing))
    if at_once == 1:
        make_missing(index, missing)
        return
    from diffretriever.pipelines.cluster import ray_session
    from diffretriever.pipelines.tasks import in_tasks

    with ray_session(), Progress(f"codes and postings → {index.uri}", total) as progress:
        calls = ((index.uri, index.version, files) for files in missing)
        for passages in in_tasks(_make, calls, cpus=1, at_once=at_once, local=local):
            progress.update(passages)


def _make(uri: str, version: int, missing: Missing) -> int:
    from diffretriever.search.accelerate import make_missing

    make_missing(PassageIndex.open(uri, version), [missing])
    return missing.passages
