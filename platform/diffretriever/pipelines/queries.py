"""Encoding queries by a pool of actors, for whoever has more of them than one process should encode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from diffretriever.collections import Query
from diffretriever.pipelines.blocks import pack, unpack
from diffretriever.pipelines.cluster import EncoderPool
from diffretriever.pipelines.stages import load_in_actor
from diffretriever.pipelines.streams import actors, packed, stream
from schemas.retriever import NeuralRetriever

QUERIES_PER_BLOCK = 256
_BUDGET = "budget"


def query_block(queries: Sequence[Query], budget: int | None) -> pa.Table:
    """Return queries as a block to encode with K_q = `budget`, or with the configured one."""
    columns = {"text": pa.array([query.text for query in queries], pa.string())}
    if budget is not None:
        columns[_BUDGET] = pa.array([budget] * len(queries), pa.int32())
    return pa.table(columns)


def encode_queries(
    blocks: Mapping[str, pa.Table], retriever: NeuralRetriever, pool: EncoderPool, threads: int
) -> Iterator[tuple[str, pa.Table]]:
    """Encode blocks of queries, given by name, with `threads` threads an actor; the model is loaded once an actor.

    Yields:
        The name of a block and its representations as a table, in no order.
    """
    if not blocks:
        return
    constructor = {"retriever_json": retriever.model_dump_json(), "device": pool.device, "threads": threads}
    rows = stream([pack(name, block) for name, block in blocks.items()])
    yield from packed(rows.map_batches(EncodeQueries, fn_constructor_kwargs=constructor, **actors(pool, len(blocks))))


class EncodeQueries:
    """An encoder actor: blocks of query texts in, their representations out."""

    def __init__(self, retriever_json: str, device: str, threads: int) -> None:
        self._encoder = load_in_actor(retriever_json, device, threads)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode each block."""
        for key, table in unpack(rows):
            budgets = table.column(_BUDGET).to_pylist() if _BUDGET in table.column_names else None
            yield pack(key, self._encoder.encode_queries(table.column("text").to_pylist(), budgets).to_arrow())
