"""The unit of work: a block of passages, encoded together, written together, committed together.

Ray Data merges and splits its own blocks as it sees fit. A block of passages therefore travels as one row: its task
key and its table as Arrow IPC bytes, so that its boundaries and its key are the same in every attempt.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

from diffretriever.collections import Collection, Passage, ScanResult
from diffretriever.index.writer import text_table
from diffretriever.pipelines.cluster import READER_CPUS, EncoderPool
from schemas.retriever import RetrieverConfig

_BLOCK_BYTES = 32 << 20


_MAX_ROWS = 512


_MIN_ROWS = 32


_TEXT_BYTES = 4096


def rows_per_block(retriever: RetrieverConfig, hidden_size: int | None) -> int:
    """Return how many passages keep a block near 32 MB, from K_p and H; between 32 and 512."""
    row_bytes = _TEXT_BYTES + retriever.max_vectors("passage") * (hidden_size or 0) * 2
    return max(_MIN_ROWS, min(_MAX_ROWS, _BLOCK_BYTES // row_bytes))


def pack(key: str, table: pa.Table) -> pa.Table:
    """Return the one row that carries a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.table({"key": [key], "block": pa.array([sink.getvalue().to_pybytes()], pa.large_binary())})


def unpack(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield key and table of each block in `rows`."""
    for key, block in zip(rows.column("key").to_pylist(), rows.column("block"), strict=True):
        yield key, pa.ipc.open_stream(block.as_buffer()).read_all()


def read_blocks(collection: Collection, scanned: ScanResult, rows: int) -> Iterator[pa.Table]:
    """Yield the wanted passages of a scanned collection, a packed block at a time."""
    passages = scanned.kept(collection)
    while chunk := list(islice(passages, rows)):
        yield pack(_task_key(chunk), text_table(chunk, collection.name))


def _task_key(passages: Iterable[Passage]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for passage in passages:
        digest.update(f"{passage.id}\x1f".encode() + passage.digest)
    return digest.hexdigest()


AS_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
"""For `map_batches`: rows as they come, as an Arrow table."""


def _quiet() -> None:
    """Let Ray Data pass every row on at once, for each is a whole unit of work, and show no bars of its own."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 1
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def stream(rows: Sequence[pa.Table]) -> Dataset:
    """Return a dataset of tables of one row each."""
    _quiet()
    return ray.data.from_arrow(list(rows))


def read_here(source: Callable[[], Iterable[pa.Table]]) -> Dataset:
    """Return a dataset of what `source` yields, read on the driver's machine, where its files are."""
    _quiet()
    here = ray.get_runtime_context().get_node_id()
    return ray.data.read_datasource(
        _OneTask(source), override_num_blocks=1, num_cpus=READER_CPUS, label_selector={"ray.io/node-id": here}
    )


class _OneTask(Datasource):
    """Streams all that a source yields in one long-running read."""

    def __init__(self, source: Callable[[], Iterable[pa.Table]]) -> None:
        super().__init__()
        self._source = source

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return the one task that reads everything."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [ReadTask(self._source, metadata)]

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known, and not needed: the stream is read at the pace of what follows."""
        return None


def tables(dataset: Dataset) -> Iterator[pa.Table]:
    """Yield what comes out of a graph as soon as it is done, in no order."""
    yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)


def packed(dataset: Dataset) -> Iterator[tuple[str, pa.Table]]:
    """Yield key and table of each block that comes out of a graph; see `blocks.pack`."""
    for batch in tables(dataset):
        yield from unpack(batch)


def actors(pool: EncoderPool, blocks: int | None = None) -> dict[str, Any]:
    """Return what `map_batches` needs for a pool of actors, no more of them than blocks where those are counted."""
    size = pool.encoders if blocks is None else min(pool.encoders, blocks)
    compute = ActorPoolStrategy(min_size=1 if pool.autoscale else size, max_size=size)
    return {"compute": compute, "num_cpus": pool.cpus, "num_gpus": pool.gpus, **AS_ARROW}
