"""The Ray Data graph: read → prepare → encode and write → receipts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


def receipts(
    blocks: Dataset, indexes: Sequence[PassageIndex], pool: EncoderPool, threads: int
) -> Iterator[dict[str, Any]]:
    """Encode and write the blocks; yield a row of `RECEIPT_SCHEMA` for each, as it is done, in no order.

    The first index says what encodes them; any others are of smaller budgets of its nested slots.
    """
    for table in tables(_written(blocks, indexes, pool, threads)):
        yield from table.to_pylist()


def _written(blocks: Dataset, indexes: Sequence[PassageIndex], pool: EncoderPool, threads: int) -> Dataset:
    retriever = indexes[0].manifest.retriever
    if isinstance(retriever, Bm25Retriever):
        one = TaskPoolStrategy(size=1)
        return blocks.map_batches(
            store_blocks, fn_kwargs={"uri": indexes[0].uri}, num_cpus=PREPARE_CPUS, compute=one, **AS_ARROW
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
    budgets = {index.uri: index.manifest.retriever.max_vectors("passage") for index in indexes}
    constructor = {"retriever_json": text, "budgets": budgets, "device": pool.device, "threads": threads}
    return prepared.map_batches(EncodeBlocks, fn_constructor_kwargs=constructor, **actors(pool))
