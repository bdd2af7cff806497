"""The Ray Data graph: read → prepare → encode and write → receipts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, TaskPoolStrategy

from diffretriever.collections import Collection, ScanResult
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.cluster import PREPARE_CPUS, READER_CPUS, EncoderPool
from diffretriever.pipelines.stages import EncodeBlocks, PassageSource, prepare_blocks, store_blocks
from schemas.retriever import Bm25Retriever


def read(collection: Collection, scanned: ScanResult, rows: int) -> Dataset:
    """Return the kept passages of a scanned collection as a stream of packed blocks."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    # Every row is a whole block: Ray must pass each on at once and never wait to merge several.
    context.target_max_block_size = 1
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    here = ray.get_runtime_context().get_node_id()
    return ray.data.read_datasource(
        PassageSource(collection, scanned, rows),
        override_num_blocks=1,
        num_cpus=READER_CPUS,
        label_selector={"ray.io/node-id": here},
    )


def receipts(blocks: Dataset, index: PassageIndex, pool: EncoderPool, threads: int) -> Iterator[dict[str, Any]]:
    """Encode and write the blocks; yield a row of `RECEIPT_SCHEMA` for each, as it is done, in no order."""
    for batch in _written(blocks, index, pool, threads).iter_batches(
        batch_size=None, batch_format="pyarrow", prefetch_batches=0
    ):
        yield from batch.to_pylist()


def _written(blocks: Dataset, index: PassageIndex, pool: EncoderPool, threads: int) -> Dataset:
    arrow: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    retriever = index.manifest.retriever
    if isinstance(retriever, Bm25Retriever):
        one = TaskPoolStrategy(size=1)
        return blocks.map_batches(
            store_blocks, fn_kwargs={"uri": index.uri}, num_cpus=PREPARE_CPUS, compute=one, **arrow
        )
    text = retriever.model_dump_json()
    prepared = blocks.map_batches(
        prepare_blocks,
        fn_kwargs={"retriever_json": text},
        num_cpus=PREPARE_CPUS,
        # Every one is a process that loads a tokenizer; one keeps several encoders busy.
        compute=TaskPoolStrategy(size=math.ceil(pool.encoders / 4)),
        **arrow,
    )
    compute = ActorPoolStrategy(min_size=1 if pool.autoscale else pool.encoders, max_size=pool.encoders)
    constructor = {"retriever_json": text, "uri": index.uri, "device": pool.device, "threads": threads}
    return prepared.map_batches(
        EncodeBlocks,
        fn_constructor_kwargs=constructor,
        compute=compute,
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
        **arrow,
    )
