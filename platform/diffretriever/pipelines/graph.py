"""The Ray Data graph: read → prepare → encode and write → receipts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from ray.data import Dataset, TaskPoolStrategy

from diffretriever.collections import Collection, ScanResult
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.blocks import read_blocks
from diffretriever.pipelines.cluster import PREPARE_CPUS, EncoderPool
from diffretriever.pipelines.stages import EncodeBlocks, prepare_blocks, store_blocks
from diffretriever.pipelines.streams import AS_ARROW, actors, read_here, tables
from schemas.retriever import Bm25Retriever


def read(collection: Collection, scanned: ScanResult, rows: int) -> Dataset:
    """Return the kept passages of a scanned collection as a stream of packed blocks."""
    return read_here(partial(read_blocks, collection, scanned, rows))


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
