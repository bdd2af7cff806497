"""Encoders in Ray workers: loading one, describing it before any work is given out, and encoding queries by a pool."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa
import ray
from pydantic import ValidationError

from diffretriever.backbones.source import FetchError, pinned
from diffretriever.collections import Query
from diffretriever.pipelines.cluster import EncoderPool, result_of
from diffretriever.pipelines.streams import actor_options, blocks_of, dataset_of, pack, unpack
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, NeuralRetriever
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.preparer import Preparer

T = TypeVar("T")

QUERIES_PER_BLOCK = 256

_BUDGET = "budget"
_PAUSES = (2.0, 10.0, 30.0)
"""Seconds before a model that could not be fetched is asked for again."""


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
    tokens_per_batch: int | Literal["auto"] = "auto"
    tokenizer: str | None = None
    """Digest of the tokenizer that an actor must find."""
    compiled: bool = False
    """Whether the model's layers are compiled."""

    @classmethod
    def of(cls, manifest: IndexManifest, pool: EncoderPool, config: RayConfig) -> EncoderStart:
        """Return the start of the encoder that `describe_encoder` described."""
        return cls(
            manifest.retriever.model_dump_json(),
            manifest.weights,
            pool.device,
            config.threads_per_encoder,
            config.tokens_per_batch,
            manifest.tokenizer,
            config.compiled,
        )


class StartedEncoder:
    """The encoder of an actor, which loads it as it starts.

    Ray Data starts another actor in the place of one that fails at that, on another machine where it can. A user's
    mistake would be the same there: so it is kept, and ends the job when the first block is to be encoded.
    """

    def __init__(self, start: EncoderStart | Encoder) -> None:
        """Load the encoder, unless it is loaded already.

        Raises:
            FetchError: the hub, which the probe found the model on, did not give it to this machine, time and again.
        """
        self._encoder: Encoder | None = None
        self._mistake = ""
        self._threads: int | None = None
        if not isinstance(start, EncoderStart):
            self._encoder = start
            return
        self._threads = start.threads
        try:
            self._encoder = fetched_at_last(lambda: load_in_actor(start))
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

    config = retriever_from(retriever_json)
    return fetched_at_last(lambda: load_preparer(config))


def fetched_at_last(load: Callable[[], T]) -> T:
    """Return what `load` does; where the hub fails it, which served others before, it is called again a few times."""
    for pause in _PAUSES:
        try:
            return load()
        except FetchError:
            time.sleep(pause)
    return load()


def load_in_actor(start: EncoderStart) -> Encoder:
    """Load the encoder of an actor, which works with so many threads from then on.

    Raises:
        ValueError: it cannot be loaded or compiled, or its weights or its tokenizer are others than the job's.
    """
    import torch

    from diffretriever.encoders import load_encoder
    from diffretriever.encoders.room import chosen_tokens

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
    encoder.tokens_per_batch = chosen_tokens(encoder, start.tokens_per_batch)
    return encoder


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


def with_commits(retriever: NeuralRetriever) -> NeuralRetriever:
    """Return a retriever whose revisions on the hub are commits; raises ValueError as `pinned` does."""
    if retriever.runs_its_code:
        # Consent is to the revision as it is written.
        return retriever
    return retriever.model_copy(update={"backbone": pinned(retriever.backbone)})


def as_begun(place: BackboneConfig, begun: BackboneConfig) -> BackboneConfig:
    """Return a backbone in the precision, and of the commits on the hub, in which work with it was begun.

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


def query_block(queries: Sequence[Query], budget: int | None) -> pa.Table:
    """Return queries as a block to encode with K_q = `budget`, or with the configured one."""
    columns = {"text": pa.array([query.text for query in queries], pa.string())}
    if budget is not None:
        columns[_BUDGET] = pa.array([budget] * len(queries), pa.int32())
    return pa.table(columns)


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


class EncodeQueries:
    """An encoder actor: blocks of query texts in, their representations out."""

    def __init__(self, start: EncoderStart | Encoder) -> None:
        self._started = StartedEncoder(start)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode each block."""
        encoder = self._started.encoder
        for key, table in unpack(rows):
            budgets = table.column(_BUDGET).to_pylist() if _BUDGET in table.column_names else None
            yield pack(key, encoder.encode_queries(table.column("text").to_pylist(), budgets).to_arrow())
