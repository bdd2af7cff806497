"""Runs stages on Ray Data, with pools of encoder actors, and compacts while a job runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Self

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, Datasource, ReadTask, TaskPoolStrategy
from ray.data.block import BlockMetadata

from diffretriever.collections import Collection
from diffretriever.collections.scanning import PartScan, scan_part
from diffretriever.core.files import is_local
from diffretriever.core.progress import warn_once
from diffretriever.index.commits import table_uri
from diffretriever.index.compaction import CompactionTask, execute, is_current, plan
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.blocks import PassageBlocks, Stage, pack, unpack
from diffretriever.pipelines.cluster import (
    PREPARE_CPUS,
    READER_CPUS,
    EncoderPool,
    on_this_node,
    open_streams,
    raise_mistake,
    ray_session,
    result_of,
    size_pool,
)
from diffretriever.pipelines.encoder_start import EncoderStart, retriever_from, with_commits
from diffretriever.pipelines.executor import Executor
from diffretriever.pipelines.tasks import in_tasks
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import NeuralRetriever, RetrieverConfig, is_neural
from diffretriever.schemas.settings import RayConfig

AS_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
"""For `map_batches`: rows as they come, as an Arrow table."""
ONE_BLOCK: dict[str, Any] = {**AS_ARROW, "batch_size": 1}
"""The same, with one packed block per batch. Ray Data accepts only a number as batch size with GPUs."""

_FAILED_STARTS = 8
"""Actors that may fail to start in a row, in all of a graph's pool."""

_AT_ONCE_CPU, _AT_ONCE_GPU = 2, 3
"""Blocks of an encoder actor: one on the device, the others on their way there or to the store. A GPU is done with a
block in about the time that a slow store takes to write it: there two may be written at once."""
_ENCODERS_PER_PREPARER = 4
_PARTS_PER_SEARCHER = 4
"""So that searchers end at about the same time, and little is lost where one is killed."""
# Beside encoders, which are given all other CPUs where there are no GPUs; most of a task is reading and writing.
_COMPACTION_CPUS = 0.25
_ENCODERS_PER_COMPACTION = 8
_SCAN_CPUS = 0.5
# So that no more than these wait for an earlier one.
_SCANS_AHEAD = 64


class RayExecutor(Executor):
    """Runs stages on Ray Data, in the running Ray session or a new one."""

    pool: EncoderPool
    """What the actors take; sized by `load`."""

    def __init__(self, config: RayConfig) -> None:
        """Start nothing yet; `config` is the job."""
        super().__init__(config)
        self._described: Any = None

    def __enter__(self) -> Self:
        self._open.enter_context(ray_session())
        return self

    def load(self, retriever: RetrieverConfig) -> None:
        """Size the pool of encoders, and start to load the encoder in a worker.

        The task is never cancelled: Ray may abort a process that cancels a task as it ends.

        Raises:
            ValueError: The cluster can never provide what the job requests.
        """
        super().load(retriever)
        self.pool = size_pool(self.config, retriever)
        if is_neural(retriever):
            options = _describe_there.options(num_cpus=self.pool.cpus, num_gpus=self.pool.gpus)
            self._described = options.remote(retriever.model_dump_json(), self.pool.device)

    def _describe(self, retriever: NeuralRetriever) -> IndexManifest:
        manifest, notices = result_of(self._described)
        # The log of Ray's workers is not shown.
        for notice in notices:
            warn_once(f"warning: {notice}")
        return IndexManifest.model_validate_json(manifest)

    @property
    def device(self) -> str:
        """Device of the encoders."""
        return self.pool.device

    @property
    def parts(self) -> int:
        """Number of parts to search an index in."""
        return self.pool.encoders * _PARTS_PER_SEARCHER

    def scan_parts(self, collection: Collection) -> Iterator[PartScan]:
        """Scan parts of a collection in Ray tasks on the node of its files; a single part in this process."""
        parts = collection.parts()
        if len(parts) == 1:
            return super().scan_parts(collection)
        calls = ((collection, part) for part in parts)
        local = is_local(collection.location())
        return in_tasks(scan_part, calls, cpus=_SCAN_CPUS, at_once=_SCANS_AHEAD, local=local)

    def map(self, stage: Stage, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Apply a stage to blocks; yield names and tables, unordered."""
        packed = dataset_of([pack(name, block) for name, block in blocks.items()])
        return blocks_of(staged(packed, stage, self._pool_for(len(blocks))))

    def compactions(self, indexes: Sequence[PassageIndex], blocks: int) -> list[CompactionBeside]:
        """Return the compactions to run while blocks are encoded."""
        return [CompactionBeside(index, self._pool_for(blocks).encoders) for index in indexes]

    def _encoder(self) -> EncoderStart:
        manifest = self.manifest()
        retriever_json = manifest.retriever.model_dump_json()
        return EncoderStart(retriever_json, manifest.weights, manifest.tokenizer, self.device, self.config)

    def _run(self, stages: Sequence[Stage], blocks: PassageBlocks) -> Iterator[pa.Table]:
        rows = read_blocks(blocks.readers(), anywhere=not is_local(blocks.collection.location()))
        pool = self._pool_for(blocks.count)
        for stage in stages:
            rows = staged(rows, stage, pool)
        return tables_of(rows)

    def _pool_for(self, blocks: int) -> EncoderPool:
        """Limit the pool to one encoder per block."""
        return replace(self.pool, encoders=min(self.pool.encoders, blocks))


class CompactionBeside:
    """Compacts committed fragments while a job runs; the job's driver makes all commits."""

    def __init__(self, index: PassageIndex, encoders: int) -> None:
        """Run one compaction task per eight encoders."""
        self._index = index
        self._most = -(-encoders // _ENCODERS_PER_COMPACTION)
        self._running: dict[Any, CompactionTask] = {}
        self._changing: set[int] = set()
        self._execute = ray.remote(execute).options(num_cpus=_COMPACTION_CPUS, scheduling_strategy="SPREAD")

    def step(self) -> None:
        """Commit finished compactions and start new ones, without waiting.

        Raises:
            ValueError: Another process changed the index.
        """
        if self._running:
            done, _ = ray.wait([*self._running], num_returns=len(self._running), timeout=0)
            self._commit(done)
        if len(self._running) >= self._most:
            return
        busy = self._changing.union(*(task.fragments for task in self._running.values()))
        full = (task for task in plan(self._index.dataset, busy, worn=False) if task.is_full)
        for task in islice(full, self._most - len(self._running)):
            self._running[self._execute.remote(table_uri(self._index.uri), task.text)] = task

    def finish(self) -> None:
        """Wait for running tasks and commit their results; raises as `step`."""
        self._commit([*self._running])

    def _commit(self, done: Sequence[Any]) -> None:
        results = [result for reference in done if (result := self._result(reference)) is not None]
        self._index.commit_compaction(results)

    def _result(self, reference: Any) -> str | None:
        task = self._running.pop(reference)
        try:
            result = str(ray.get(reference))
        except ray.exceptions.RayError:
            # The job continues; the compaction at its end retries and reports the problem.
            self._most = 0
            return None
        if is_current(self._index.dataset, result):
            return result
        # The job replaces rows of these, and will replace more: they are joined at its end.
        self._changing.update(task.fragments)
        return None


def staged(rows: Dataset, stage: Stage, pool: EncoderPool) -> Dataset:
    """Return a dataset that applies a stage to packed blocks.

    Worker counts derive from the pool and are explicit: on few CPUs, one stage could starve the next forever.
    """
    if stage.workers == "encoders":
        at_once = (_AT_ONCE_GPU if pool.gpus else _AT_ONCE_CPU) if stage.overlaps else 1
        # Ray's dashboard and process titles show the name of the class.
        actor = type(type(stage).__name__, (StageActor,), {})
        return rows.map_batches(actor, fn_constructor_kwargs={"stage": stage}, **actor_options(pool, at_once))
    if stage.workers == "searchers":
        # A part is searched as a whole, so each task gets exactly one.
        compute = TaskPoolStrategy(size=pool.encoders)
        options = {"compute": compute, "num_cpus": pool.cpus, "num_gpus": pool.gpus, **ONE_BLOCK}
    else:
        # Every one is a process that loads a tokenizer; one keeps several encoders busy.
        compute = TaskPoolStrategy(size=math.ceil(pool.encoders / _ENCODERS_PER_PREPARER))
        options = {"compute": compute, "num_cpus": PREPARE_CPUS, **AS_ARROW}
    return rows.map_batches(_in_task, fn_kwargs={"stage": ray.put(stage)}, **options)


class StageActor:
    """A worker that stays: it sets its stage up once."""

    def __init__(self, stage: Stage) -> None:
        """Set the stage up."""
        stage.setup()
        self._stage = stage

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Process the blocks in `rows`."""
        return self._stage(rows)


def _in_task(rows: pa.Table, stage: Any) -> Iterator[pa.Table]:
    """Run a stage, which is in Ray's store, in a task."""
    ready: Stage = ray.get(stage)
    ready.setup()
    yield from ready(rows)


def actor_options(pool: EncoderPool, at_once: int) -> dict[str, Any]:
    """Return `map_batches` options for a pool of actors with `at_once` threads each."""
    compute = ActorPoolStrategy(
        size=pool.encoders,
        max_concurrent_calls_per_actor=at_once,
        enable_true_multi_threading=True,
        # A block that waits in an actor could be encoded by another one.
        max_tasks_in_flight_per_actor=max(2, at_once),
    )
    return {"compute": compute, "num_cpus": pool.cpus, "num_gpus": pool.gpus, **ONE_BLOCK}


@ray.remote
def _describe_there(retriever_json: str, device: str) -> tuple[str, list[str]]:
    from diffretriever.encoders import load_encoder
    from diffretriever.index.manifest import manifest_of

    retriever = with_commits(retriever_from(retriever_json))
    encoder = load_encoder(retriever, device)
    return manifest_of(encoder).model_dump_json(), encoder.preparer.notices


def dataset_of(rows: Sequence[pa.Table]) -> Dataset:
    """Return a dataset of tables of one row each."""
    _configure_ray_data()
    return ray.data.from_arrow(list(rows))


def read_blocks(sources: Sequence[Callable[[], Iterable[pa.Table]]], *, anywhere: bool = False) -> Dataset:
    """Return a dataset of the tables of each source, in order, one task per source.

    A lost block is read again from its own source only. Tasks run on the driver's node, unless `anywhere` is set.
    """
    _configure_ray_data()
    options = {"num_cpus": READER_CPUS} if anywhere else on_this_node(READER_CPUS)
    # One at a time keeps hundreds of encoders busy; of more, each would hold blocks before their turn.
    return ray.data.read_datasource(_Sources(sources), override_num_blocks=len(sources), concurrency=1, **options)


def _configure_ray_data() -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 1
    # Of many machines one may fail to fetch a model: another actor is started in its place.
    context.max_consecutive_actor_init_deaths = _FAILED_STARTS
    # An error that ends a graph is raised; Ray Data would show it a second time, with its own traceback.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


class _Sources(Datasource):
    """Streams each source in a separate read task."""

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
        """Return None: unknown, and not needed."""
        return None


def tables_of(dataset: Dataset) -> Iterator[pa.Table]:
    """Yield the tables of a dataset as they are done, unordered.

    Raises:
        FullDiskError: A disk is full on a worker's node.
        ValueError: A worker raised it; without Ray's traceback.
    """
    stream = _tables_of(dataset)
    open_streams.add(stream)
    return stream


def _tables_of(dataset: Dataset) -> Generator[pa.Table, None, None]:
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    except ray.exceptions.RayError as error:
        raise_mistake(error)
        raise


def blocks_of(dataset: Dataset) -> Iterator[tuple[str, pa.Table]]:
    """Yield key and table of each packed block of a dataset, unordered."""
    for rows in tables_of(dataset):
        yield from unpack(rows)
