"""Runs the stages of a job in this process or on Ray.

Small jobs run in this process, because starting Ray takes longer, unless Ray already runs or the job sets a Ray option.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
from diffretriever.pipelines.encoder_start import EncoderStart, configured_encoder, with_commits
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import NeuralRetriever, RetrieverConfig, is_neural
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.index.table import PassageIndex
    from diffretriever.pipelines.ray_executor import CompactionBeside

_OPTIONS_OF_RAY = ("encoders", "cpus_per_encoder", "gpus_per_encoder", "autoscale")
_FEW_PASSAGES = 100_000
"""Searching this many passages takes about as long as starting Ray."""


def executor_for(config: RayConfig, *, small: bool) -> Executor:
    """Return `LocalExecutor` if `runs_here`, else `RayExecutor`.

    Raises:
        ValueError: No Ray answers at the address in the environment.
    """
    if runs_here(config, small=small):
        return LocalExecutor(config)
    from diffretriever.pipelines.ray_executor import RayExecutor

    return RayExecutor(config)


def runs_here(config: RayConfig, *, small: bool) -> bool:
    """Return whether a job is small, sets no Ray option, and Ray is not running yet.

    Raises:
        ValueError: No Ray answers at the address in the environment.
    """
    from diffretriever.pipelines.cluster import is_ray_running

    fields = type(config).model_fields
    sets_option = any(getattr(config, name) != fields[name].default for name in _OPTIONS_OF_RAY if name in fields)
    return small and not sets_option and not is_ray_running()


def few_passages(collection: Collection, most: int = MAX_ROWS) -> bool:
    """Return whether a collection has at most `most` records (default: one block)."""
    return next(islice(collection.records(), most, None), None) is None


def few_queries(index: PassageIndex, queries: int) -> bool:
    """Return whether the queries fit in one block and the index is small."""
    return queries <= QUERIES_PER_BLOCK and len(index) <= _FEW_PASSAGES


class Executor(ABC):
    """Runs the stages of a job and loads its encoder; a context manager."""

    retriever: RetrieverConfig
    """The retriever that `load` has set."""

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
        """Set the job's retriever. On Ray, a worker starts to load its encoder.

        Raises:
            ValueError: The encoders do not fit on the cluster.
        """
        self.retriever = retriever

    def manifest(self) -> IndexManifest:
        """Wait until the encoder is loaded; return its manifest, with hub revisions pinned to commits.

        Raises:
            ValueError: The encoder cannot be loaded or compiled.
        """
        if self._manifest is None:
            retriever = self.retriever
            self._manifest = self._describe(retriever) if is_neural(retriever) else bm25_manifest(retriever)
        return self._manifest

    def scan_parts(self, collection: Collection) -> Iterator[PartScan]:
        """Scan each part of a collection, in order."""
        return (scan_part(collection, part) for part in collection.parts())

    def encode_passages(self, blocks: PassageBlocks, indexes: Sequence[PassageIndex]) -> Iterator[Receipt]:
        """Encode blocks and write them uncommitted to the indexes; yield receipts, unordered.

        The first index is the retriever's; others have smaller budgets of its nested slots.

        Raises:
            ValueError: A worker has other weights.
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
        """Encode blocks of queries, name → `query_block`; yield names and representations, unordered.

        Raises:
            ValueError: A worker has other weights.
        """
        return self.map(EncodeQueries(self._encoder()), blocks) if blocks else iter(())

    @abstractmethod
    def map(self, stage: Stage, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Apply a stage to blocks; yield names and tables, unordered."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Device of the encoders."""

    @property
    def parts(self) -> int:
        """Number of parts to search an index in."""
        return 1

    def compactions(self, indexes: Sequence[PassageIndex], blocks: int) -> list[CompactionBeside]:
        """Return the compactions to run while this number of blocks is encoded."""
        return []

    @abstractmethod
    def _describe(self, retriever: NeuralRetriever) -> IndexManifest:
        """Return the manifest of the retriever's encoder, loaded."""

    @abstractmethod
    def _encoder(self) -> Encoder | EncoderStart:
        """Return the loaded encoder, or the settings from which workers load it."""

    @abstractmethod
    def _run(self, stages: Sequence[Stage], blocks: PassageBlocks) -> Iterator[pa.Table]: ...


class LocalExecutor(Executor):
    """Runs stages in this process with one encoder, one block at a time."""

    def __init__(self, config: RayConfig, encoder: Encoder | None = None, device: str = "auto") -> None:
        """Store the options; the environment overrides `device`."""
        super().__init__(config)
        self._device = device
        self.encoder = encoder
        """None until `manifest` loads it, and for retrievers without an encoder."""

    @property
    def device(self) -> str:
        """Device of the encoder."""
        return os.environ.get(DEVICE_VARIABLE) or self._device

    def _describe(self, retriever: NeuralRetriever) -> IndexManifest:
        from diffretriever.index.manifest import manifest_of

        if self.encoder is None:
            self.encoder = configured_encoder(with_commits(retriever), self.device, self.config)
        return manifest_of(self.encoder)

    def map(self, stage: Stage, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Apply a stage to blocks; yield names and tables, in order."""
        for rows in self._run([stage], (pack(name, block) for name, block in blocks.items())):
            yield from unpack(rows)

    def _encoder(self) -> Encoder:
        assert self.encoder is not None, "`manifest` has loaded it"
        return self.encoder

    def _run(self, stages: Sequence[Stage], blocks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        with ExitStack() as threads:
            if self.encoder is not None:
                from diffretriever.backbones.device import torch_threads

                threads.enter_context(torch_threads(self.config.encoder_threads))
            for stage in stages:
                stage.setup()
                blocks = chain.from_iterable(map(stage, blocks))
            yield from blocks
