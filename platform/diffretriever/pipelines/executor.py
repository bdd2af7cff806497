"""Where the stages of a job run: in this process, or on Ray.

No other module knows. Starting Ray takes longer than a small job, which therefore runs in this process, unless a Ray
runs already or the job sets an option of Ray.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from diffretriever.collections import Collection
from diffretriever.collections.scanning import PartScan, scan_part
from diffretriever.index.manifest import bm25_manifest
from diffretriever.pipelines import DEVICE_VARIABLE
from diffretriever.pipelines.blocks import (
    MAX_ROWS,
    QUERIES_PER_BLOCK,
    EncodeBlocks,
    EncodeQueries,
    PassageBlocks,
    PrepareBlocks,
    Receipt,
    Stage,
    StoreBlocks,
    pack,
    unpack,
)
from diffretriever.pipelines.encoder_start import EncoderStart, with_commits
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import NeuralRetriever, RetrieverConfig, is_neural
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.index.table import PassageIndex
    from diffretriever.pipelines.ray_executor import CompactionBeside

_OPTIONS_OF_RAY = ("encoders", "cpus_per_encoder", "gpus_per_encoder", "autoscale")
_FEW_PASSAGES = 100_000
"""This process searches as many for a block of queries in the seconds that Ray takes to start."""


def executor_for(config: RayConfig, *, small: bool) -> Executor:
    """Return the executor of a job: `LocalExecutor` if `runs_here`, else `RayExecutor`.

    Raises:
        ValueError: no Ray answers at the address in the environment.
    """
    if runs_here(config, small=small):
        return LocalExecutor(config)
    from diffretriever.pipelines.ray_executor import RayExecutor

    return RayExecutor(config)


def runs_here(config: RayConfig, *, small: bool) -> bool:
    """Return whether a job runs in this process: its work is small, it sets no option of Ray, and no Ray runs already.

    Raises:
        ValueError: no Ray answers at the address in the environment.
    """
    from diffretriever.pipelines.cluster import is_cluster_at_hand

    fields = type(config).model_fields
    asks = any(getattr(config, name) != fields[name].default for name in _OPTIONS_OF_RAY if name in fields)
    return small and not asks and not is_cluster_at_hand()


def few_passages(collection: Collection, most: int = MAX_ROWS) -> bool:
    """Return whether a collection has at most `most` records, by default those of one block."""
    return next(islice(collection.records(), most, None), None) is None


def few_queries(index: PassageIndex, queries: int) -> bool:
    """Return whether the queries are one block, and the passages to search for them few."""
    return queries <= QUERIES_PER_BLOCK and len(index) <= _FEW_PASSAGES


class Executor(ABC):
    """Runs the stages of a job and loads its encoder. It is open within a `with` block."""

    retriever: RetrieverConfig
    """The retriever that `load` was given."""

    def __init__(self, config: RayConfig) -> None:
        """Start nothing yet; `config` is the job."""
        self.config = config
        self._open = ExitStack()
        self._manifest: IndexManifest | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def load(self, retriever: RetrieverConfig) -> None:
        """Choose the retriever of the job. On Ray, a worker starts to load its encoder.

        Raises:
            ValueError: the cluster has no room for the encoders.
        """
        self.retriever = retriever

    def manifest(self) -> IndexManifest:
        """Wait until the encoder is loaded; return its manifest, with commits for revisions on the hub.

        Raises:
            ValueError: it cannot be loaded or compiled, with the reason.
        """
        if self._manifest is None:
            retriever = self.retriever
            self._manifest = self._describe(retriever) if is_neural(retriever) else bm25_manifest(retriever)
        return self._manifest

    @abstractmethod
    def scan_parts(self, collection: Collection) -> Iterator[PartScan]:
        """Scan each part of a collection, in order."""

    def encode_passages(self, blocks: PassageBlocks, indexes: Sequence[PassageIndex]) -> Iterator[Receipt]:
        """Encode blocks and write them to the indexes, uncommitted; yield the receipt of each, in no order.

        The first index is the retriever's, others are of smaller budgets of its nested slots.

        Raises:
            ValueError: a worker found other weights.
        """
        if is_neural(self.retriever):
            start = self._encoder()
            budgets = {index.uri: index.manifest.retriever.max_vectors("passage") for index in indexes}
            stages: list[Stage] = [PrepareBlocks(start), EncodeBlocks(start, budgets)]
        else:
            stages = [StoreBlocks(indexes[0].uri)]
        for table in self._run(stages, blocks):
            yield from table.to_pylist()

    def encode_queries(self, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Encode blocks of queries, name → `query_block`; yield name and representations of each, in no order.

        Raises:
            ValueError: a worker found other weights.
        """
        return self.map(EncodeQueries(self._encoder()), blocks) if blocks else iter(())

    @abstractmethod
    def map(self, stage: Stage, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Yield name and table of all that a stage makes of blocks, in no order."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Device of the encoders."""

    @property
    @abstractmethod
    def parts(self) -> int:
        """Number of parts to search an index in."""

    @abstractmethod
    def compactions(self, indexes: Sequence[PassageIndex], blocks: int) -> list[CompactionBeside]:
        """Return what joins fragments of indexes while this number of blocks is encoded."""

    @abstractmethod
    def _describe(self, retriever: NeuralRetriever) -> IndexManifest:
        """Return the manifest of the retriever's encoder, loaded."""

    @abstractmethod
    def _encoder(self) -> Encoder | EncoderStart:
        """Return the loaded encoder, or what workers load it from."""

    @abstractmethod
    def _run(self, stages: Sequence[Stage], blocks: PassageBlocks) -> Iterator[pa.Table]:
        """Put blocks through the stages; yield what comes out, in no order."""


class LocalExecutor(Executor):
    """Runs stages in this process, one block at a time, with one encoder."""

    parts = 1

    def __init__(self, config: RayConfig, encoder: Encoder | None = None, device: str = "auto") -> None:
        """Load nothing yet. `encoder` is loaded already; `device` is overridden by the environment."""
        super().__init__(config)
        self._device = device
        self.encoder = encoder
        """None until `manifest` loads it, and where the retriever has none."""

    @property
    def device(self) -> str:
        """Device of the encoder."""
        return os.environ.get(DEVICE_VARIABLE) or self._device

    def _describe(self, retriever: NeuralRetriever) -> IndexManifest:
        from diffretriever.encoders import load_encoder
        from diffretriever.index.manifest import manifest_of

        if self.encoder is None:
            with self._threads():
                self.encoder = load_encoder(with_commits(retriever), self.device)
                if self.config.compiled:
                    self.encoder.compile_layers()
        if self.config.tokens_per_batch is not None:
            self.encoder.tokens_per_batch = self.config.tokens_per_batch
        return manifest_of(self.encoder)

    def compactions(self, indexes: Sequence[PassageIndex], blocks: int) -> list[CompactionBeside]:
        """Return nothing: few blocks are joined at the end."""
        return []

    def scan_parts(self, collection: Collection) -> Iterator[PartScan]:
        """Scan each part of a collection, in order."""
        return (scan_part(collection, part) for part in collection.parts())

    def map(self, stage: Stage, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Yield name and table of all that a stage makes of blocks, in order."""
        for rows in self._run([stage], (pack(name, block) for name, block in blocks.items())):
            yield from unpack(rows)

    def _encoder(self) -> Encoder:
        assert self.encoder is not None, "its manifest is asked for before it encodes"
        return self.encoder

    def _run(self, stages: Sequence[Stage], blocks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        with self._threads() if self.encoder else nullcontext():
            for stage in stages:
                stage.setup()
                blocks = chain.from_iterable(map(stage, blocks))
            yield from blocks

    def _threads(self) -> AbstractContextManager[None]:
        from diffretriever.backbones.device import torch_threads

        return torch_threads(self.config.encoder_threads)
