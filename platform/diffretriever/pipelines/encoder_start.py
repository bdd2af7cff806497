"""The encoder of a worker: what it is loaded from, on any machine the same one.

A user's mistake ends the job; a machine that cannot fetch the model from the hub leaves the work to another one.
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
    """What the encoder actors of a job start with."""

    retriever_json: str
    """The encoder, every choice made."""
    weights: str | None
    """Digest of the weights that an actor must find."""
    device: str
    """Where they go."""
    threads: int
    """Of torch."""
    tokens_per_batch: int | None = None
    tokenizer: str | None = None
    """Digest of the tokenizer that an actor must find."""
    compiled: bool = False
    """Whether the model's layers are compiled."""

    @classmethod
    def of(cls, manifest: IndexManifest, pool: EncoderPool, config: RayConfig) -> EncoderStart:
        """Return the start of the encoder with a manifest."""
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
        """The retriever's preparer, read once a process."""
        return preparer_of(self.retriever_json)


class StartedEncoder:
    """The encoder of an actor, which loads it as it starts.

    Ray Data starts another actor in the place of one that fails at that, on another machine where it can. A user's
    mistake would be the same there: so it is kept, and ends the job when the first block is to be encoded.
    """

    def __init__(self, start: EncoderStart | Encoder) -> None:
        """Load the encoder, unless it is loaded already.

        Raises:
            FetchError: the hub, which the probe found the model on, did not give it to this machine.
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
        """The encoder; torch computes in as many threads as the job says wherever somebody asks for it.

        Raises:
            ValueError: it could not be loaded, or its weights are others than the job's.
        """
        if self._encoder is None:
            raise ValueError(self._mistake)
        if self._threads is not None:
            import torch

            # Each of an actor's threads has a number of its own.
            torch.set_num_threads(self._threads)
        return self._encoder


@cache
def preparer_of(retriever_json: str) -> Preparer:
    """Return what prepares texts for a retriever, read once a process."""
    from diffretriever.encoders import load_preparer

    return load_preparer(retriever_from(retriever_json))


def load_in_actor(start: EncoderStart) -> Encoder:
    """Load the encoder of an actor, which works with so many threads from then on.

    Raises:
        ValueError: it cannot be loaded or compiled, or its weights or its tokenizer are others than the job's.
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
    """Return a retriever whose revisions on the hub are commits; raises ValueError as `pinned` does."""
    if retriever.runs_its_code:
        # Consent is to the revision as it is written.
        return retriever
    return retriever.model_copy(update={"backbone": pinned(retriever.backbone)})


def as_begun(place: BackboneConfig, begun: BackboneConfig) -> BackboneConfig:
    """Pin `auto` precision and revisions on the hub to those that an index was begun with.

    Only what is left open is taken over: a probe may choose otherwise today, and a branch may have moved.
    """
    kept: dict[str, str | None] = {}
    if place.dtype == "auto":
        kept["dtype"] = begun.dtype
    if place.source == begun.source and place.revision is None:
        kept["revision"] = begun.revision
    if place.adapter == begun.adapter and place.adapter_revision is None:
        kept["adapter_revision"] = begun.adapter_revision
    return place.model_copy(update=kept)


def retriever_from(text: str) -> NeuralRetriever:
    """Return the retriever that a job sent to this process.

    Raises:
        ValueError: this machine lacks the package that it is in.
    """
    try:
        return RETRIEVER_ADAPTER.validate_json(text)  # type: ignore[return-value] # jobs give no other
    except ValidationError as error:
        raise ValueError(f"machine {socket.gethostname()}: {error.errors()[0]['msg']}") from None
