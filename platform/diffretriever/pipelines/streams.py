"""Graphs of Ray Data: blocks in, tables out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.data import DataContext, Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

from diffretriever.pipelines.blocks import unpack
from diffretriever.pipelines.cluster import READER_CPUS, cpus_here, ended_with_ray, raise_mistake

AS_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
"""For `map_batches`: rows as they come, as an Arrow table."""
ONE_BLOCK: dict[str, Any] = {**AS_ARROW, "batch_size": 1}
"""Likewise, a packed block at a time: Ray Data takes nothing but a number where it is asked for GPUs."""

_FAILED_STARTS = 8
"""Actors that may fail to start in a row, in all of a graph's pool."""


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


def tables_of(dataset: Dataset) -> Iterator[pa.Table]:
    """Yield what comes out of a graph as soon as it is done, in no order.

    Raises:
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
