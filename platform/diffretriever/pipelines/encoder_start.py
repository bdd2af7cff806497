"""Loads the same encoder in every worker.

User errors end the job; if a node cannot fetch the model from the hub, the work moves to another node.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ValidationError

from diffretriever.backbones.source import pinned
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, NeuralRetriever
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.preparer import Preparer


@dataclass(frozen=True, slots=True)
class EncoderStart:
    """Settings from which the encoder actors of a job load their encoder."""

    retriever_json: str
    """Retriever config with all settings resolved."""
    weights: str | None
    """Expected digest of the weights."""
    tokenizer: str | None
    """Expected digest of the tokenizer."""
    device: str
    """Device of the weights."""
    config: RayConfig

    @property
    def preparer(self) -> Preparer:
        """The retriever's preparer, loaded once per process."""
        return preparer_of(self.retriever_json)

    def load(self) -> Encoder:
        """Load the encoder.

        Raises:
            FetchError: This node could not fetch the model from the hub.
            ValueError: It cannot be loaded or compiled, or weights or tokenizer differ from the job's.
        """
        encoder = configured_encoder(retriever_from(self.retriever_json), self.device, self.config)
        facts = encoder.facts
        for difference, digest, expected in (
            ("other weights", facts.weights, self.weights),
            ("another tokenizer", facts.tokenizer, self.tokenizer),
        ):
            if digest != expected:
                raise ValueError(
                    f"machine {socket.gethostname()} has {difference} than the job began with: {encoder.config.title} "
                    f"has digest {digest} there, {expected} was expected. Give every machine the same files, "
                    "or name a commit of the hub as the backbone's revision; what was committed stays"
                )
        return encoder


def configured_encoder(retriever: NeuralRetriever, device: str, config: RayConfig) -> Encoder:
    """Load an encoder with a job's number of threads, batch size and compilation.

    Raises:
        ValueError: It cannot be loaded or compiled.
    """
    from diffretriever.backbones.device import torch_threads
    from diffretriever.encoders import load_encoder

    with torch_threads(config.encoder_threads):
        encoder = load_encoder(retriever, device)
        if config.compiled:
            encoder.compile_layers()
    if config.tokens_per_batch is not None:
        encoder.tokens_per_batch = config.tokens_per_batch
    return encoder


@cache
def preparer_of(retriever_json: str) -> Preparer:
    """Return the preparer of a retriever, loaded once per process."""
    from diffretriever.encoders import load_preparer

    return load_preparer(retriever_from(retriever_json))


def with_commits(retriever: NeuralRetriever) -> NeuralRetriever:
    """Pin the retriever's hub revisions to commits; raises ValueError as `pinned` does."""
    if getattr(retriever, "remote_code", False):
        # trust_remote_code applies to the revision as written.
        return retriever
    return retriever.model_copy(update={"backbone": pinned(retriever.backbone)})


def as_begun(backbone: BackboneConfig, begun: BackboneConfig) -> BackboneConfig:
    """Pin `auto` precision and hub revisions to those of the existing index; explicit settings stay."""
    pins: dict[str, str | None] = {}
    if backbone.dtype == "auto":
        pins["dtype"] = begun.dtype
    if backbone.source == begun.source and backbone.revision is None:
        pins["revision"] = begun.revision
    if backbone.adapter == begun.adapter and backbone.adapter_revision is None:
        pins["adapter_revision"] = begun.adapter_revision
    return backbone.model_copy(update=pins)


def retriever_from(text: str) -> NeuralRetriever:
    """Parse the retriever that a job sent to this process.

    Raises:
        ValueError: This node lacks the retriever's package.
    """
    try:
        return RETRIEVER_ADAPTER.validate_json(text)  # type: ignore[return-value] # jobs give no other
    except ValidationError as error:
        raise ValueError(f"machine {socket.gethostname()}: {error.errors()[0]['msg']}") from None
