"""The Ray Data graph: read → prepare → encode and write → receipts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ray
from ray.data import Dataset, TaskPoolStrategy

from diffretriever.collections import Collection, ScanResult
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.cluster import PREPARE_CPUS, READER_CPUS, EncoderPool
from diffretriever.pipelines.stages import EncodeBlocks, PassageSource, prepare_blocks, store_blocks
from diffretriever.pipelines.streams import AS_ARROW, actors, quiet, tables
from schemas.retriever import Bm25Retriever


def read(collection: Collection, scanned: ScanResult, rows: int) -> Dataset:
    """Return the kept passages of a scanned collection as a stream of packed blocks."""
    quiet()
    here = ray.get_runtime_context().get_node_id()
    return ray.data.read_datasource(
        PassageSource(collection, scanned, rows),
        override_num_blocks=1,
        num_cpus=READER_CPUS,
        label_selector={"ray.io/node-id": here},
    )


def receipts(blocks: Dataset, index: PassageIndex, pool: EncoderPool, threads: int) -> Iterator[dict[str, Any]]:
    """Encode and write the blocks; yield a row of `RECEIPT_SCHEMA` for each, as it is done, in no order."""
    for table in tables(_written(blocks, index, pool, threads)):
        yield from table.to_pylist()


def _written(blocks: Dataset, index: PassageIndex, pool: EncoderPool, threads: int) -> Dataset:
    retriever = index.manifest.retriever
    if isinstance(retriever, Bm25Retriever):
        one = TaskPoolStrategy(size=1)
        return blocks.map_batches(
            store_blocks, fn_kwargs={"uri": index.uri}, num_cpus=PREPARE_CPUS, compute=one, **AS_ARROW
        )
    text = retriever.model_dump_json()
    prepared = blocks.map_batches(
        prepare_blocks,
        fn_kwargs={"retriever_json": text},
        num_cpus=PREPARE_CPUS,
        # Every one is a process that loads a tokenizer; one keeps several encoders busy.
        compute=TaskPoolStrategy(size=math.ceil(pool.encoders / 4)),
        **AS_ARROW,
    )
    constructor = {"retriever_json": text, "uri": index.uri, "device": pool.device, "threads": threads}
    return prepared.map_batches(EncodeBlocks, fn_constructor_kwargs=constructor, **actors(pool))
