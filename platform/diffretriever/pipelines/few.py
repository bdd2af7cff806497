"""A job that encodes or searches for little does without Ray, which takes longer to start than all of that work.

They are one block, which one encoder would be given anyway: that one is loaded in the job's own process, once, for
describing it and for encoding. Everything else is as on Ray, and so is the index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from diffretriever.collections import Collection
from diffretriever.pipelines.blocks import MAX_ROWS, QUERIES_PER_BLOCK, EncodeQueries, pack, unpack, with_commits
from diffretriever.pipelines.cluster import DEVICE_VARIABLE, is_cluster_at_hand
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import NeuralRetriever
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.index.table import PassageIndex

_PLACES_OF_WORK = ("encoders", "cpus_per_encoder", "gpus_per_encoder", "autoscale", "searchers")
_FEW_PASSAGES = 100_000
"""They are searched for a block of queries in the seconds that a Ray takes to start."""


def is_few(job: RayConfig, collection: Collection, rows_per_block: int | None = None) -> bool:
    """Return whether a collection is to be encoded in this process: it has no more records than a block.

    Args:
        job: says where encoders run; see `needs_no_ray`.
        collection: to be encoded.
        rows_per_block: most passages of a block; None: as many as any retriever's may have.

    Raises:
        ValueError: no Ray answers at the address in the environment.
    """
    if not needs_no_ray(job):
        return False
    most = rows_per_block or MAX_ROWS
    return sum(1 for _ in islice(collection.records(), most + 1)) <= most


def is_few_queries(job: RayConfig, index: PassageIndex, queries: int) -> bool:
    """Return whether so many queries are to be encoded, and searched for, in this process.

    Args:
        job: says where encoders and searches run; see `needs_no_ray`.
        index: to be searched.
        queries: how many.

    Raises:
        ValueError: no Ray answers at the address in the environment.
    """
    return queries <= QUERIES_PER_BLOCK and len(index) <= _FEW_PASSAGES and needs_no_ray(job)


def needs_no_ray(job: RayConfig) -> bool:
    """Return whether no Ray is at hand, and the job asks for nothing of Ray's.

    Raises:
        ValueError: no Ray answers at the address in the environment.
    """
    fields = type(job).model_fields
    asks = any(getattr(job, name) != fields[name].default for name in _PLACES_OF_WORK if name in fields)
    return not asks and not is_cluster_at_hand(job)


class EncoderHere:
    """The encoder of a job in the job's own process."""

    def __init__(self, config: RayConfig, encoder: Encoder | None = None, device: str = "auto") -> None:
        """Load nothing yet.

        Args:
            config: of the job.
            encoder: the job's, where it is loaded already.
            device: to load it onto, unless the environment says another.
        """
        self._config, self._device = config, device
        self.encoder = encoder
        """None before it is described, and where the retriever has none."""

    @property
    def device(self) -> str:
        """Where the encoder's weights go."""
        return os.environ.get(DEVICE_VARIABLE) or self._device

    def describe(self, retriever: NeuralRetriever) -> IndexManifest:
        """Load the encoder and return its manifest, in which revisions on the hub are commits.

        Raises:
            ValueError: it cannot be loaded or compiled, with the reason.
        """
        from diffretriever.backbones.device import torch_threads
        from diffretriever.encoders import load_encoder
        from diffretriever.encoders.room import chosen_tokens
        from diffretriever.index.manifest import manifest_of

        wanted = self._config.tokens_per_batch
        if self.encoder is None:
            with torch_threads(self._config.threads_per_encoder):
                self.encoder = load_encoder(with_commits(retriever), self.device)
                if self._config.compiled:
                    self.encoder.compile_layers()
                self.encoder.tokens_per_batch = chosen_tokens(self.encoder, wanted)
        elif wanted != "auto":
            self.encoder.tokens_per_batch = wanted
        return manifest_of(self.encoder)

    def encode_queries(self, blocks: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        """Encode blocks of queries by the encoder that was described; see `pipelines.streams.encode_queries`.

        Args:
            blocks: name → `query_block`.

        Yields:
            The name of a block and its representations as a table.
        """
        from diffretriever.backbones.device import torch_threads

        assert self.encoder is not None, "it is described before anything is encoded"
        encode = EncodeQueries(self.encoder)
        with torch_threads(self._config.threads_per_encoder):
            for name, block in blocks.items():
                for rows in encode(pack(name, block)):
                    yield from unpack(rows)
