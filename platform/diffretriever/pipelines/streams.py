"""Blocks on Ray: graphs of Ray Data that they go through, pools of encoder actors, a task for what comes before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diffretriever.collections import Collection
from diffretriever.collections.scanning import PartScan, scan_part
from diffretriever.files import is_local
from diffretriever.pipelines.blocks import EncodeQueries, EncoderStart, pack, retriever_from, unpack, with_commits
from diffretriever.pipelines.cluster import (
    READER_CPUS,
    EncoderPool,
    cpus_here,
    ended_with_ray,
    raise_mistake,
    result_of,
)
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import NeuralRetriever
from diffretriever.schemas.settings import RayConfig

AS_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
"""For `map_batches`: rows as they come, as an Arrow table."""
ONE_BLOCK: dict[str, Any] = {**AS_ARROW, "batch_size": 1}
"""Likewise, a packed block at a time: Ray Data takes nothing but a number where it is asked for GPUs."""

_FAILED_STARTS = 8
"""Actors that may fail to start in a row, in all of a graph's pool."""
_AT_ONCE_CPU, _AT_ONCE_GPU = 2, 3
"""Blocks of an encoder actor: one on the device, the others on their way there or to the store. A GPU is done with a
block in about the time that a slow store takes to write it: there two may be written at once."""
_SCAN_CPUS = 0.5
# So that no more than these wait for an earlier one.
_SCANS_AHEAD = 64


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


def scan_parts(collection: Collection, most_bad: int | None) -> Iterator[PartScan]:
    """Scan the parts of a collection in Ray tasks, where its files are; a single part right here.

    Args:
        collection: whose parts.
        most_bad: how many bad records of a part are shown, None for all.
    """
    parts = collection.parts()
    if len(parts) == 1:
        yield scan_part(collection, parts[0], most_bad)
        return
    options: dict[str, Any] = {"num_cpus": _SCAN_CPUS}
    if is_local(collection.place()):
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": cpus_here(_SCAN_CPUS), "scheduling_strategy": here}
    task = ray.remote(scan_part).options(**options)
    left = iter(parts)
    running = [task.remote(collection, part, most_bad) for part in islice(left, _SCANS_AHEAD)]
    while running:
        yield result_of(running.pop(0))
        running += [task.remote(collection, part, most_bad) for part in islice(left, 1)]


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


def describe_encoder(retriever: NeuralRetriever, pool: EncoderPool) -> IndexManifest:
    """Load the encoder in a Ray worker and return its manifest, in which revisions on the hub are commits.

    Raises:
        ValueError: it cannot be loaded, with the reason.
    """
    return describing_encoder(retriever, pool)()


def describing_encoder(retriever: NeuralRetriever, pool: EncoderPool) -> Callable[[], IndexManifest]:
    """Begin what `describe_encoder` does; return what waits for its end.

    Who has no need of it any more leaves it to its end: Ray may abort a process that cancels a task which just ends.
    """
    options = _describe.options(num_cpus=pool.cpus, num_gpus=pool.gpus)
    described = options.remote(retriever.model_dump_json(), pool.device)
    return lambda: IndexManifest.model_validate_json(result_of(described))


@ray.remote
def _describe(retriever_json: str, device: str) -> str:
    from diffretriever.encoders import load_encoder
    from diffretriever.index.manifest import manifest_of

    retriever = with_commits(retriever_from(retriever_json))
    return manifest_of(load_encoder(retriever, device)).model_dump_json()


def encode_queries(
    blocks: Mapping[str, pa.Table], manifest: IndexManifest, pool: EncoderPool, config: RayConfig
) -> Iterator[tuple[str, pa.Table]]:
    """Encode blocks of queries; each actor loads the model once.

    Args:
        blocks: name → `query_block`.
        manifest: the encoder, as `describe_encoder` gave it.
        pool: how many actors there may be, and what each takes.
        config: what each works with.

    Yields:
        The name of a block and its representations as a table, in no order.

    Raises:
        ValueError: an actor found other weights.
    """
    if not blocks:
        return
    constructor = {"start": EncoderStart.of(manifest, pool, config)}
    rows = dataset_of([pack(name, block) for name, block in blocks.items()])
    options = actor_options(pool, len(blocks))
    yield from blocks_of(rows.map_batches(EncodeQueries, fn_constructor_kwargs=constructor, **options))
