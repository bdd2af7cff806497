"""What runs in Ray workers for a batch search: encoding queries, and searching parts of an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

from diffretriever.encoders.representations import Representations
from diffretriever.pipelines.blocks import pack, unpack
from diffretriever.pipelines.cluster import EncoderPool
from schemas.batch_search import BatchSearchJob
from schemas.retriever import RETRIEVER_ADAPTER, NeuralRetriever

_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}


def encode_queries(
    blocks: dict[str, list[str]], retriever: NeuralRetriever, job: BatchSearchJob, pool: EncoderPool
) -> Iterator[tuple[str, pa.Table]]:
    """Encode blocks of query texts, given by name, by the actors of the pool.

    Yields:
        The name of a block and its representations as a table, in no order.
    """
    size = min(pool.encoders, len(blocks))
    packed = [pack(name, pa.table({"text": texts})) for name, texts in blocks.items()]
    yield from _results(
        _stream(packed).map_batches(
            EncodeQueries,
            fn_constructor_kwargs={
                "retriever_json": retriever.model_dump_json(),
                "budget": job.query_budget,
                "device": pool.device,
                "threads": job.threads_per_encoder,
            },
            compute=ActorPoolStrategy(min_size=1 if pool.autoscale else size, max_size=size),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus,
            **_ARROW,
        )
    )


class EncodeQueries:
    """An encoder actor: blocks of query texts in, their representations out."""

    def __init__(self, retriever_json: str, budget: int | None, device: str, threads: int) -> None:
        import torch

        from diffretriever.encoders import load_encoder

        torch.set_num_threads(threads)
        config: NeuralRetriever = RETRIEVER_ADAPTER.validate_json(retriever_json)  # type: ignore[assignment]
        self._encoder = load_encoder(config, device)
        self._budget = budget

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode each block."""
        for key, table in unpack(rows):
            texts = table.column("text").to_pylist()
            budgets = [self._budget] * len(texts) if self._budget else None
            yield pack(key, self._encoder.encode_queries(texts, budgets).to_arrow())


def search_parts(
    parts: dict[str, list[int]], queries: Representations, version: int, job: BatchSearchJob, pool: EncoderPool
) -> Iterator[tuple[str, pa.Table]]:
    """Search parts of an index, given by a name and fragments each, for all queries.

    Yields:
        `NAME/dense` and `NAME/sparse`, whichever the modes need, with a table of `search.hit_tables`; in no order.
    """
    blocks = [pack(name, pa.table({"fragment": pa.array(ids, pa.int64())})) for name, ids in parts.items()]
    found = _stream(blocks).map_batches(
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
        **_ARROW,
    )
    yield from _results(found)


def _search_part(rows: pa.Table, queries: Any, version: int, job_json: str, device: str) -> Iterator[pa.Table]:
    import torch

    from diffretriever.index.part import IndexPart
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.batch import search_lists

    job = BatchSearchJob.model_validate_json(job_json)
    torch.set_num_threads(job.threads_per_encoder)
    representations: Representations = ray.get(queries)
    for name, table in unpack(rows):
        part = IndexPart(PassageIndex.open(job.index, version), table.column("fragment").to_pylist())
        for score, found in search_lists(part, representations, job, device):
            yield pack(f"{name}/{score}", found)


def _stream(blocks: list[pa.Table]) -> ray.data.Dataset:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    # Every row is a whole unit of work.
    context.target_max_block_size = 1
    return ray.data.from_arrow(blocks)


def _results(dataset: ray.data.Dataset) -> Iterator[tuple[str, pa.Table]]:
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from unpack(batch)
