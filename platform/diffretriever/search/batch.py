"""Searching a part of an index for queries that are encoded already, as one task of a batch search does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import pyarrow as pa

from diffretriever.backbones.device import resolve_device
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.search.cut import searched_depth
from diffretriever.search.dense import open_dense
from diffretriever.search.hit_tables import to_table
from diffretriever.search.neural import FUSION_DEPTH
from diffretriever.search.sparse import open_sparse
from schemas.batch_search import BatchSearchJob
from schemas.retriever_parts import Mode

ListName: TypeAlias = Literal["dense", "sparse"]
"""A list that modes are made of."""
LISTS: dict[Mode, tuple[ListName, ...]] = {"dense": ("dense",), "sparse": ("sparse",), "hybrid": ("dense", "sparse")}


def lists_of(modes: tuple[Mode, ...]) -> tuple[ListName, ...]:
    """Return the lists that the modes need, without repetition."""
    return tuple(dict.fromkeys(name for mode in modes for name in LISTS[mode]))


def list_depth(job: BatchSearchJob) -> int:
    """Return how many passages of each list are kept for a query."""
    asked = searched_depth(job.top_k, exclude_self=job.exclude_self)
    return max(asked, FUSION_DEPTH) if "hybrid" in job.modes else asked


def search_lists(
    part: PassageIndex, queries: Representations, job: BatchSearchJob, device: str
) -> Iterator[tuple[ListName, pa.Table]]:
    """Yield each list that the job's modes need, with each query's best passages of the part."""
    for name in lists_of(job.modes):
        search = open_dense(part, job, resolve_device(device)) if name == "dense" else open_sparse(part, job)
        yield name, to_table(search.search(queries, list_depth(job)))
