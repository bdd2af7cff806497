"""Loads the same encoder in every worker.

User errors end the job; if a node cannot fetch the model from the hub, the work moves to another node.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ValidationError

from diffretriever.backbones.source import FetchError, pinned
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, NeuralRetriever
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.preparer import Preparer
    from diffretriever.pipelines.cluster import EncoderPool


@dataclass(frozen=True, slots=True)
class EncoderStart:
    """Settings from which the encoder actors of a job load their encoder."""

    retriever_json: str
    """Retriever config with all settings resolved."""
    weights: str | None
    """Expected digest of the weights."""
    device: str
    """Device of the weights."""
    threads: int
    """Number of torch threads."""
    tokens_per_batch: int | None = None
    tokenizer: str | None = None
    """Expected digest of the tokenizer."""
    compiled: bool = False
    """Whether the model's layers are compiled."""

    @classmethod
    def of(cls, manifest: IndexManifest, pool: EncoderPool, config: RayConfig) -> EncoderStart:
        """Return the settings for the encoder of a manifest."""
        return cls(
            manifest.retriever.model_dump_json(),
            manifest.weights,
            pool.device,
            config.encoder_threads,
            config.tokens_per_batch,
            manifest.tokenizer,
            config.compiled,
        )

    @property
    def preparer(self) -> Preparer:
        """The retriever's preparer, loaded once per process."""
        return preparer_of(self.retriever_json)


class StartedEncoder:
    """Loads the encoder when an actor starts.

    Ray Data replaces an actor that fails to start. A user error would recur there, so it is raised by the first block.
    """

    def __init__(self, start: EncoderStart | Encoder) -> None:
        """Load the encoder, unless it is passed.

        Raises:
            FetchError: This node could not fetch the model from the hub.
        """
        self._encoder: Encoder | None = None
        self._mistake = ""
        self._threads: int | None = None
        if not isinstance(start, EncoderStart):
            self._encoder = start
            return
        self._threads = start.threads
        try:
            self._encoder = load_in_actor(start)
        except FetchError:
            raise
        except ValueError as error:
            self._mistake = str(error)

    @property
    def encoder(self) -> Encoder:
        """The encoder; also sets torch's thread count in the calling thread.

        Raises:
            ValueError: It could not be loaded, or its weights differ from the job's.
        """
        if self._encoder is None:
            raise ValueError(self._mistake)
        if self._threads is not None:
            import torch

            # torch's thread count is set per thread.
            torch.set_num_threads(self._threads)
        return self._encoder


@cache
def preparer_of(retriever_json: str) -> Preparer:
    """Return the preparer of a retriever, loaded once per process."""
    from diffretriever.encoders import load_preparer

    return load_preparer(retriever_from(retriever_json))


def load_in_actor(start: EncoderStart) -> Encoder:
    """Load the encoder of an actor, and set torch's thread count.

    Raises:
        ValueError: It cannot be loaded or compiled, or weights or tokenizer differ from the job's.
    """
    import torch

    from diffretriever.encoders import load_encoder

    torch.set_num_threads(start.threads)
    encoder = load_encoder(retriever_from(start.retriever_json), start.device)
    facts = encoder.facts
    for what, found, expected in (
        ("other weights", facts.weights, start.weights),
        ("another tokenizer", facts.tokenizer, start.tokenizer),
    ):
        if found != expected:
            raise ValueError(
                f"machine {socket.gethostname()} has {what} than the job began with: {encoder.config.title} has "
                f"digest {found} there, {expected} was expected. Give every machine the same files, "
                "or name a commit of the hub as the backbone's revision; what was committed stays"
            )
    if start.compiled:
        encoder.compile_layers()
    if start.tokens_per_batch is not None:
        encoder.tokens_per_batch = start.tokens_per_batch
    return encoder


def with_commits(retriever: NeuralRetriever) -> NeuralRetriever:
    """Pin the retriever's hub revisions to commits; raises ValueError as `pinned` does."""
    if getattr(retriever, "remote_code", False):
        # trust_remote_code applies to the revision as written.
        return retriever
    return retriever.model_copy(update={"backbone": pinned(retriever.backbone)})


def as_begun(place: BackboneConfig, begun: BackboneConfig) -> BackboneConfig:
    """Pin `auto` precision and hub revisions to those of the existing index; explicit settings stay."""
    kept: dict[str, str | None] = {}
    if place.dtype == "auto":
        kept["dtype"] = begun.dtype
    if place.source == begun.source and place.revision is None:
        kept["revision"] = begun.revision
    if place.adapter == begun.adapter and place.adapter_revision is None:
        kept["adapter_revision"] = begun.adapter_revision
    return place.model_copy(update=kept)


def retriever_from(text: str) -> NeuralRetriever:
    """Parse the retriever that a job sent to this process.

    Raises:
        ValueError: This node lacks the retriever's package.
    """
    try:
        return RETRIEVER_ADAPTER.validate_json(text)  # type: ignore[return-value] # jobs give no other
    except ValidationError as error:
        raise ValueError(f"machine {socket.gethostname()}: {error.errors()[0]['msg']}") from None
