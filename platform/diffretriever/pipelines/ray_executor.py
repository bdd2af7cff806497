"""Stages on Ray: graphs of Ray Data for blocks, pools of encoder actors, tasks that scan and load ahead of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any, Self

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset, TaskPoolStrategy
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diffretriever.collections import Collection
from diffretriever.collections.scanning import PartScan, scan_part
from diffretriever.files import is_local
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.blocks import PassageBlocks, Stage, pack
from diffretriever.pipelines.cluster import (
    PREPARE_CPUS,
    EncoderPool,
    MachinesAhead,
    cpus_here,
    ray_session,
    result_of,
    size_pool,
)
from diffretriever.pipelines.compact import CompactionBeside
from diffretriever.pipelines.encoder_start import EncoderStart, retriever_from, with_commits
from diffretriever.pipelines.executor import Executor
from diffretriever.pipelines.streams import AS_ARROW, ONE_BLOCK, blocks_of, dataset_of, read_blocks, tables_of
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RetrieverConfig, is_neural
from diffretriever.schemas.settings import RayConfig

_AT_ONCE_CPU, _AT_ONCE_GPU = 2, 3
"""Blocks of an encoder actor: one on the device, the others on their way there or to the store. A GPU is done with a
block in about the time that a slow store takes to write it: there two may be written at once."""
_ENCODERS_PER_PREPARER = 4
_PARTS_PER_SEARCHER = 4
"""So that searchers end at about the same time, and little is lost where one is killed."""
_SCAN_CPUS = 0.5
# So that no more than these wait for an earlier one.
_SCANS_AHEAD = 64


class RayExecutor(Executor):
    """Runs stages on Ray Data, in the Ray session that runs already, or in one of its own."""

    pool: EncoderPool
    """What the actors take; sized by `load`."""

    def __init__(self, config: RayConfig) -> None:
        """Start nothing yet; `config` is the job."""
        super().__init__(config)
        self._ahead = ExitStack()
        self._machines: MachinesAhead
        self._described: Any = None
        self._manifest: IndexManifest | None = None

    def __enter__(self) -> Self:
        self._open.enter_context(ray_session(self.config))
        return self

    def load(self, retriever: RetrieverConfig) -> None:
        """Size the pool of encoders, and start to load the encoder in a worker.

        A job that fails leaves that task to its end: Ray may abort a process that cancels a task which just ends.

        Raises:
            ValueError: the cluster has no room for what the job requests, and never will.
        """
        super().load(retriever)
        self.pool = size_pool(self.config, retriever)
        self._machines = self._ahead.enter_context(MachinesAhead(self.pool))
        self._open.enter_context(self._ahead)
        if is_neural(retriever):
            options = _describe.options(num_cpus=self.pool.cpus, num_gpus=self.pool.gpus)
            self._described = options.remote(retriever.model_dump_json(), self.pool.device)

    def expect(self, blocks: int) -> None:
        """Have the cluster add nodes for this number of blocks; placeholders leave when the encoder is described."""
        self._machines.ask(blocks)

    def manifest(self) -> IndexManifest:
        """Wait for the worker that loads the encoder; see `Executor.manifest`."""
        if self._manifest is None:
            if is_neural(self.retriever):
                self._manifest = IndexManifest.model_validate_json(result_of(self._described))
            else:
                self._manifest = bm25_manifest(self.retriever)
            self._ahead.close()
        return self._manifest

    @property
    def device(self) -> str:
        """Device of the encoders."""
        return self.pool.device

    @property
    def parts(self) -> int:
        """Number of parts to search an index in."""
        return self.pool.encoders * _PARTS_PER_SEARCHER

    def scan_parts(self, collection: Collection, most_bad: int | None) -> Iterator[PartScan]:
        """Scan the parts of a collection in Ray tasks, on the node of its files; a single part in this process."""
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

    def map(self, stage: Stage, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Yield name and table of all that a stage makes of blocks, in no order."""
        packed = dataset_of([pack(name, block) for name, block in blocks.items()])
        return blocks_of(staged(packed, stage, self._pool_for(len(blocks))))

    def compactions(self, indexes: Sequence[PassageIndex], blocks: int) -> list[CompactionBeside]:
        """Return what joins fragments of each index while blocks are encoded."""
        return [CompactionBeside(index, self._pool_for(blocks).encoders) for index in indexes]

    def _encoder(self) -> EncoderStart:
        return EncoderStart.of(self.manifest(), self.pool, self.config)

    def _run(self, stages: Sequence[Stage], blocks: PassageBlocks) -> Iterator[pa.Table]:
        rows = read_blocks(blocks.readers(), anywhere=not is_local(blocks.collection.place()))
        pool = self._pool_for(blocks.count)
        for stage in stages:
            rows = staged(rows, stage, pool)
        return tables_of(rows)

    def _pool_for(self, blocks: int) -> EncoderPool:
        """Return the pool; an encoder more than there are blocks would load its weights for nothing."""
        return replace(self.pool, encoders=min(self.pool.encoders, blocks))


def staged(rows: Dataset, stage: Stage, pool: EncoderPool) -> Dataset:
    """Return a dataset of what a stage makes of rows.

    Args:
        rows: packed blocks.
        stage: sent to each worker.
        pool: of encoders, from which the number of all workers follows. Sizes are explicit: on a machine of few CPUs,
            workers of one stage could otherwise leave none to the next, which would wait for ever.
    """
    if stage.workers == "encoders":
        options = actor_options(pool, at_once=blocks_at_once(pool) if stage.overlaps else 1)
        return rows.map_batches(_Actor, fn_constructor_kwargs={"stage": stage}, **options)
    if stage.workers == "searchers":
        # A part is searched as a whole: what a task is given must be one.
        compute = TaskPoolStrategy(size=pool.encoders)
        options = {"compute": compute, "num_cpus": pool.cpus, "num_gpus": pool.gpus, **ONE_BLOCK}
    elif stage.workers == "preparers":
        # Every one is a process that loads a tokenizer; one keeps several encoders busy.
        compute = TaskPoolStrategy(size=math.ceil(pool.encoders / _ENCODERS_PER_PREPARER))
        options = {"compute": compute, "num_cpus": PREPARE_CPUS, **AS_ARROW}
    else:
        options = {"compute": ActorPoolStrategy(size=1), "num_cpus": PREPARE_CPUS, **AS_ARROW}
        return rows.map_batches(_Actor, fn_constructor_kwargs={"stage": stage}, **options)
    return rows.map_batches(_in_task, fn_kwargs={"stage": ray.put(stage)}, **options)


class _Actor:
    """A worker that stays: it sets its stage up once."""

    def __init__(self, stage: Stage) -> None:
        stage.setup()
        self._stage = stage

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        return self._stage(rows)


def _in_task(rows: pa.Table, stage: Any) -> Iterator[pa.Table]:
    """Run a stage, which is in Ray's store, in a task."""
    ready: Stage = ray.get(stage)
    ready.setup()
    yield from ready(rows)


def blocks_at_once(pool: EncoderPool) -> int:
    """Return how many blocks an actor of the pool is to encode and write at once."""
    return _AT_ONCE_GPU if pool.gpus else _AT_ONCE_CPU


def actor_options(pool: EncoderPool, at_once: int = 1) -> dict[str, Any]:
    """Return the options of `map_batches` for a pool of actors.

    Args:
        pool: of encoders.
        at_once: blocks that an actor works on at the same time, each in a thread of its own.
    """
    compute = ActorPoolStrategy(
        min_size=1 if pool.autoscale else pool.encoders,
        max_size=pool.encoders,
        max_concurrent_calls_per_actor=at_once,
        enable_true_multi_threading=True,
        # Ray Data adds actors only where those that are there have nearly twice as many blocks as they work on.
        # Elsewhere a block that waits in an actor could be worked on by another one.
        max_tasks_in_flight_per_actor=2 * at_once if pool.autoscale else max(2, at_once),
    )
    return {"compute": compute, "num_cpus": pool.cpus, "num_gpus": pool.gpus, **ONE_BLOCK}


@ray.remote
def _describe(retriever_json: str, device: str) -> str:
    from diffretriever.encoders import load_encoder
    from diffretriever.index.manifest import manifest_of

    retriever = with_commits(retriever_from(retriever_json))
    return manifest_of(load_encoder(retriever, device)).model_dump_json()
