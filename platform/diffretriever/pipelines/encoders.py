"""Encoders in Ray workers: loading one, describing it before any work is given out, and encoding queries by a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import ray

from diffretriever.collections import Query
from diffretriever.pipelines.cluster import EncoderPool, result_of
from diffretriever.pipelines.streams import actor_options, blocks_of, dataset_of, pack, unpack
from schemas.index import IndexManifest
from schemas.retriever import RETRIEVER_ADAPTER, NeuralRetriever

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder

QUERIES_PER_BLOCK = 256

_BUDGET = "budget"


def load_in_actor(retriever_json: str, device: str, threads: int) -> Encoder:
    """Load the encoder of an actor, which works with so many threads from then on."""
    import torch

    from diffretriever.encoders import load_encoder

    torch.set_num_threads(threads)
    return load_encoder(_retriever_from(retriever_json), device)


def describe_encoder(retriever: NeuralRetriever, pool: EncoderPool) -> IndexManifest:
    """Load the encoder in a Ray worker and return its manifest.

    Raises:
        ValueError: it cannot be loaded, with the reason.
    """
    task = _describe.options(num_cpus=pool.cpus, num_gpus=pool.gpus)
    return IndexManifest.model_validate_json(result_of(task.remote(retriever.model_dump_json(), pool.device)))


@ray.remote
def _describe(retriever_json: str, device: str) -> str:
    from diffretriever.encoders import load_encoder
    from diffretriever.index.table import manifest_of

    return manifest_of(load_encoder(_retriever_from(retriever_json), device)).model_dump_json()


def _retriever_from(text: str) -> NeuralRetriever:
    return RETRIEVER_ADAPTER.validate_json(text)  # type: ignore[return-value] # jobs give no other


def query_block(queries: Sequence[Query], budget: int | None) -> pa.Table:
    """Return queries as a block to encode with K_q = `budget`, or with the configured one."""
    columns = {"text": pa.array([query.text for query in queries], pa.string())}
    if budget is not None:
        columns[_BUDGET] = pa.array([budget] * len(queries), pa.int32())
    return pa.table(columns)


def encode_queries(
    blocks: Mapping[str, pa.Table], retriever: NeuralRetriever, pool: EncoderPool, threads: int
) -> Iterator[tuple[str, pa.Table]]:
    """Encode blocks of queries; each actor loads the model once.

    Args:
        blocks: name → `query_block`.
        retriever: the encoder.
        pool: how many actors there may be, and what each takes.
        threads: of each actor.

    Yields:
        The name of a block and its representations as a table, in no order.
    """
    if not blocks:
        return
    constructor = {"retriever_json": retriever.model_dump_json(), "device": pool.device, "threads": threads}
    rows = dataset_of([pack(name, block) for name, block in blocks.items()])
    options = actor_options(pool, len(blocks))
    yield from blocks_of(rows.map_batches(EncodeQueries, fn_constructor_kwargs=constructor, **options))


class EncodeQueries:
    """An encoder actor: blocks of query texts in, their representations out."""

    def __init__(self, retriever_json: str, device: str, threads: int) -> None:
        self._encoder = load_in_actor(retriever_json, device, threads)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode each block."""
        for key, table in unpack(rows):
            budgets = table.column(_BUDGET).to_pylist() if _BUDGET in table.column_names else None
            yield pack(key, self._encoder.encode_queries(table.column("text").to_pylist(), budgets).to_arrow())
