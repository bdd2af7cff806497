"""What all graphs over rows that are whole units of work have in common: Ray Data's settings, input and output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

from diffretriever.pipelines.blocks import unpack
from diffretriever.pipelines.cluster import READER_CPUS, EncoderPool

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
