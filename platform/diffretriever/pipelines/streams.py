"""Blocks of rows on Ray Data: the unit of work, its way into a graph and out of it.

A block of passages is encoded together, written together and committed together. Ray Data merges and splits its own
blocks as it sees fit. A block of ours therefore travels as one row: its key and its table as Arrow IPC bytes, so that
its boundaries and its key are the same in every attempt.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import ray
from pyarrow import feather
from ray.data import ActorPoolStrategy, DataContext, Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

from diffretriever.collections import Passage
from diffretriever.files import understood
from diffretriever.index.writer import text_table
from diffretriever.ledger import Ledger
from diffretriever.pipelines.cluster import READER_CPUS, EncoderPool, cpus_here, ended_with_ray, raise_mistake
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.retriever import RetrieverConfig

AS_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
"""For `map_batches`: rows as they come, as an Arrow table."""
ONE_BLOCK: dict[str, Any] = {**AS_ARROW, "batch_size": 1}
"""Likewise, a packed block at a time: Ray Data takes nothing but a number where it is asked for GPUs."""

_BLOCK_BYTES = 32 << 20
# Fewer passages leave the encoder's batches unfilled; more lose much when a worker dies.
_MIN_ROWS, MAX_ROWS = 32, 512
_FAILED_STARTS = 8
"""Actors that may fail to start in a row, in all of a graph's pool."""
_AT_ONCE_CPU, _AT_ONCE_GPU = 2, 3
"""Blocks of an encoder actor: one on the device, the others on their way there or to the store. A GPU is done with a
block in about the time that a slow store takes to write it: there two may be written at once."""
# About what a passage takes beside its vectors.
_TEXT_BYTES = 4096


def rows_per_block(retriever: RetrieverConfig, hidden_size: int | None) -> int:
    """Return how many passages keep a block near 32 MB, from K_p and H; between 32 and 512."""
    row_bytes = _TEXT_BYTES + retriever.max_vectors("passage") * (hidden_size or 0) * 2
    return max(_MIN_ROWS, min(MAX_ROWS, _BLOCK_BYTES // row_bytes))


def passage_blocks(
    passages: Iterable[Passage], collection: str, rows: int, metadata: Columns | None = None
) -> Iterator[pa.Table]:
    """Yield passages of a collection, a packed block at a time.

    Args:
        passages: in order.
        collection: what it is called.
        rows: passages of a block.
        metadata: columns of it; None: none.
    """
    passages = iter(passages)
    while chunk := list(islice(passages, rows)):
        yield pack(_block_key(chunk), text_table(chunk, collection, metadata))


def _block_key(passages: Iterable[Passage]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for passage in passages:
        digest.update(f"{passage.id}\x1f".encode() + passage.digest)
    return digest.hexdigest()


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


def dataset_of(rows: Sequence[pa.Table]) -> Dataset:
    """Return a dataset of tables of one row each."""
    _configure_ray_data()
    return ray.data.from_arrow(list(rows))


def read_blocks(sources: Sequence[Callable[[], Iterable[pa.Table]]], *, anywhere: bool = False) -> Dataset:
    """Return a dataset of what the sources yield, a task each.

    A block that is lost with its machine is read again with its own source and no other.

    Args:
        sources: what to read, in order.
        anywhere: whether every machine can; otherwise that of the driver does, where its files are.
    """
    _configure_ray_data()
    place: dict[str, Any] = {"num_cpus": READER_CPUS}
    if not anywhere:
        here = ray.get_runtime_context().get_node_id()
        place = {"num_cpus": cpus_here(READER_CPUS), "label_selector": {"ray.io/node-id": here}}
    # One at a time keeps hundreds of encoders busy; of more, each would hold blocks before their turn.
    return ray.data.read_datasource(_Sources(sources), override_num_blocks=len(sources), concurrency=1, **place)


def _configure_ray_data() -> None:
    """Let Ray Data pass every row on at once, for each is a whole unit of work, and show no bars of its own."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 1
    # Of many machines one may fail to fetch a model: another actor is started in its place.
    context.max_consecutive_actor_init_deaths = _FAILED_STARTS
    # An error that ends a graph is raised; Ray Data would show it a second time, with its own traceback.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


class _Sources(Datasource):
    """Streams what each source yields in a read of its own."""

    def __init__(self, sources: Sequence[Callable[[], Iterable[pa.Table]]]) -> None:
        super().__init__()
        self._sources = sources

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each source."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [ReadTask(source, metadata) for source in self._sources]

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known, and not needed: the stream is read at the pace of what follows."""
        return None


def blocks_at_once(pool: EncoderPool) -> int:
    """Return how many blocks an actor of the pool is to encode and write at once."""
    return _AT_ONCE_GPU if pool.gpus else _AT_ONCE_CPU


def actor_options(pool: EncoderPool, blocks: int | None = None, at_once: int = 1) -> dict[str, Any]:
    """Return what `map_batches` needs for a pool of actors.

    Args:
        pool: of encoders.
        blocks: how many there are, where that is known; no actor is started in vain.
        at_once: blocks that an actor works on at the same time, each in a thread of its own.
    """
    size = pool.encoders if blocks is None else min(pool.encoders, blocks)
    compute = ActorPoolStrategy(
        min_size=1 if pool.autoscale else size,
        max_size=size,
        max_concurrent_calls_per_actor=at_once,
        enable_true_multi_threading=True,
        # Ray Data adds actors only where those that are there have nearly twice as many blocks as they work on.
        # Elsewhere a block that waits in an actor could be worked on by another one.
        max_tasks_in_flight_per_actor=2 * at_once if pool.autoscale else max(2, at_once),
    )
    return {"compute": compute, "num_cpus": pool.cpus, "num_gpus": pool.gpus, **ONE_BLOCK}


def tables_of(dataset: Dataset) -> Iterator[pa.Table]:
    """Yield what comes out of a graph as soon as it is done, in no order.

    Raises:
        FullDiskError: a disk is full where one of the graph's functions ran.
        ValueError: one of the graph's functions raised it; without Ray's traceback.
    """
    return ended_with_ray(_tables_of(dataset))


def _tables_of(dataset: Dataset) -> Generator[pa.Table, None, None]:
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    except ray.exceptions.RayError as error:
        raise_mistake(error)
        raise


def blocks_of(dataset: Dataset) -> Iterator[tuple[str, pa.Table]]:
    """Yield key and table of each packed block that comes out of a graph, in no order."""
    for rows in tables_of(dataset):
        yield from unpack(rows)


def put_table(ledger: Ledger, name: str, table: pa.Table) -> None:
    """Put a table into a ledger, compressed; the entry is an Arrow file."""
    sink = pa.BufferOutputStream()
    feather.write_feather(table, sink, compression="lz4")
    ledger.put(name, sink.getvalue())


def get_table(ledger: Ledger, name: str) -> pa.Table:
    """Return a table that `put_table` put and that must be there; raises `ValueError` if it is damaged."""
    data = ledger.get(name)
    if data is None:
        raise ValueError(f"{ledger.place(name)} was put there and cannot be read any more: give the same command again")
    with understood(ledger.place(name), "remove it, and its work is done again"):
        return feather.read_table(pa.BufferReader(data))
