"""What all graphs over rows that are whole units of work have in common: Ray Data's settings, input and output."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset

from diffretriever.pipelines.blocks import unpack
from diffretriever.pipelines.cluster import EncoderPool

AS_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
"""For `map_batches`: rows as they come, as an Arrow table."""


def quiet() -> None:
    """Let Ray Data pass every row on at once, for each is a whole unit of work, and show no bars of its own."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 1
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def stream(rows: Sequence[pa.Table]) -> Dataset:
    """Return a dataset of tables of one row each."""
    quiet()
    return ray.data.from_arrow(list(rows))


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
