"""Searching parts of an index as Ray tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy

from diffretriever.encoders.representations import Representations
from diffretriever.pipelines.blocks import pack, unpack
from diffretriever.pipelines.cluster import EncoderPool
from diffretriever.pipelines.streams import AS_ARROW, packed, stream
from schemas.batch_search import BatchSearchJob


def search_parts(
    parts: dict[str, list[int]], queries: Representations, version: int, job: BatchSearchJob, pool: EncoderPool
) -> Iterator[tuple[str, pa.Table]]:
    """Search parts of an index, given by a name and fragments each, for all queries.

    Yields:
        `NAME/dense` and `NAME/sparse`, whichever the modes need, with a table of `search.hit_tables`; in no order.
    """
    blocks = [pack(name, pa.table({"fragment": pa.array(ids, pa.int64())})) for name, ids in parts.items()]
    found = stream(blocks).map_batches(
        _search_part,
        fn_kwargs={
            "queries": ray.put(queries),
            "version": version,
            "job_json": job.model_dump_json(),
            "device": pool.device,
        },
        # A part is searched as a whole: what a task is given must be one.
        compute=TaskPoolStrategy(size=pool.encoders),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
        **AS_ARROW,
    )
    yield from packed(found)


def _search_part(rows: pa.Table, queries: Any, version: int, job_json: str, device: str) -> Iterator[pa.Table]:
    import torch

    from diffretriever.index.part import IndexPart
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.batch import search_lists

    job = BatchSearchJob.model_validate_json(job_json)
    torch.set_num_threads(job.threads_per_encoder)
    representations: Representations = ray.get(queries)
    for name, table in unpack(rows):
        part = IndexPart.of_fragments(PassageIndex.open(job.index, version), table.column("fragment").to_pylist())
        for score, found in search_lists(part, representations, job, device):
            yield pack(f"{name}/{score}", found)
