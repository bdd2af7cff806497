"""Blocks of passages or queries: the unit of work, and what a worker does to it, in a Ray actor or in the job itself.

A block of passages is encoded together, written together and committed together. Ray Data merges and splits its own
blocks as it sees fit. A block of ours therefore travels as one row: its key and its table as Arrow IPC bytes, so that
its boundaries and its key are the same in every attempt.

Workers prepare blocks, encode and write them, or write them as they are. An encoder actor has several blocks in hand,
each in a thread of its own: while one is on the device, another is normalised, made to a table and written, so that the
device waits for nobody.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from diffretriever.backbones.source import FetchError, pinned
from diffretriever.collections import Passage, Query
from diffretriever.index.writer import BlockWriter, beside, text_table
from diffretriever.representations import not_finite
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, NeuralRetriever, RetrieverConfig
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoded, Encoder
    from diffretriever.encoders.preparer import PreparedText, Preparer
    from diffretriever.pipelines.cluster import EncoderPool
    from diffretriever.representations import Representations

T = TypeVar("T")

QUERIES_PER_BLOCK = 256
_BLOCK_BYTES = 32 << 20
# Fewer passages leave the encoder's batches unfilled; more lose much when a worker dies.
_MIN_ROWS, MAX_ROWS = 32, 512
# About what a passage takes beside its vectors.
_TEXT_BYTES = 4096
_BUDGET = "budget"
_PAUSES = (2.0, 10.0, 30.0)
"""Seconds before a model that could not be fetched is asked for again."""
RECEIPT_SCHEMA = pa.schema(  # of a block: `ids` are written, `not_finite` are those that were left out
    [
        ("key", pa.string()),
        ("receipts", pa.list_(pa.string())),
        ("ids", pa.list_(pa.string())),
        ("not_finite", pa.list_(pa.string())),
        ("tokens", pa.int64()),
        ("padded_tokens", pa.int64()),
        # Of the actor that encoded it: its name, its clock as it began and ended, and the seconds in between in which
        # the device worked on this block; most bytes so far. None where nothing was encoded.
        ("encoder", pa.string()),
        ("began", pa.float64()),
        ("ended", pa.float64()),
        ("device_seconds", pa.float64()),
        ("peak_memory", pa.int64()),
    ]
)


def rows_per_block(retriever: RetrieverConfig, hidden_size: int | None) -> int:
    """Return how many passages keep a block near 32 MB, from K_p and H; between 32 and 512."""
    row_bytes = _TEXT_BYTES + retriever.max_vectors("passage") * (hidden_size or 0) * 2
    return max(_MIN_ROWS, min(MAX_ROWS, _BLOCK_BYTES // row_bytes))


def passage_blocks(
    passages: Iterable[Passage], collection: str, rows: int, metadata: Columns | None = None
) -> Iterator[pa.Table]:
    """Yield passages of a collection, a packed block at a time.

    Args:
        passages: in order.
        collection: what it is called.
        rows: passages of a block.
        metadata: columns of it; None: none.
    """
    passages = iter(passages)
    while chunk := list(islice(passages, rows)):
        yield pack(_block_key(chunk), text_table(chunk, collection, metadata))


def _block_key(passages: Iterable[Passage]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for passage in passages:
        digest.update(f"{passage.id}\x1f".encode() + passage.digest)
    return digest.hexdigest()


def pack(key: str, table: pa.Table) -> pa.Table:
    """Return the one row that carries a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.table({"key": [key], "block": pa.array([sink.getvalue().to_pybytes()], pa.large_binary())})


def unpack(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield key and table of each block in `rows`."""
    for key, block in zip(rows.column("key").to_pylist(), rows.column("block"), strict=True):
        yield key, pa.ipc.open_stream(block.as_buffer()).read_all()


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


def prepare_blocks(rows: pa.Table, retriever_json: str) -> Iterator[pa.Table]:
    """Tokenise each block's passages and find their content words."""
    yield from prepared_blocks(rows, preparer_of(retriever_json))


def prepared_blocks(rows: pa.Table, preparer: Preparer) -> Iterator[pa.Table]:
    """Yield each block with the columns of its prepared passages."""
    from diffretriever.encoders.preparer import to_arrow

    for key, table in unpack(rows):
        titles, texts = table.column("title").to_pylist(), table.column("text").to_pylist()
        prepared = to_arrow(preparer.prepare_passages(titles, texts))
        yield pack(key, beside(table, prepared))


class EncodeBlocks:
    """An encoder actor: prepared blocks in, receipts of written fragments out. Several threads may call it at once."""

    def __init__(self, start: EncoderStart | Encoder, budgets: dict[str, int]) -> None:
        """Load the encoder, unless it is loaded already.

        `budgets` is uri → K_p of each index to write, several only of nested slots.
        """
        self._started = StartedEncoder(start)
        self._budgets = budgets
        self._writers = [BlockWriter(uri) for uri in budgets]
        self._name = uuid.uuid4().hex
        # Blocks follow each other: batches of two in turn would be done at the same time, and the device wait for both.
        self._turn = threading.Lock()

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode and write each block; nothing becomes visible before the driver commits the receipt.

        Passages whose vectors or impacts hold NaN or infinity are left out, and the receipt names them.

        Raises:
            ValueError: the encoder could not be loaded, or has other weights than the index's.
        """
        from diffretriever.backbones.device import peak_memory
        from diffretriever.encoders.preparer import from_arrow

        encoder = self._started.encoder
        for key, block in unpack(rows):
            began = time.monotonic()
            prepared = from_arrow(block)
            with self._turn:
                finish = self._launched(encoder, prepared)
            parts, cost = finish()
            table, parts, left_out = _finite_only(block, parts)
            texts = table.select(self._writers[0].text_columns)
            found = zip(self._writers, parts, strict=True)
            receipts = [writer.write(beside(texts, each.to_arrow())) for writer, each in found]
            yield _receipt(
                key,
                receipts,
                table,
                not_finite=left_out,
                tokens=cost.tokens,
                padded_tokens=cost.padded_tokens,
                encoder=self._name,
                began=began,
                ended=time.monotonic(),
                device_seconds=cost.device_seconds,
                peak_memory=peak_memory(encoder.facts.device),
            )

    def _launched(self, encoder: Encoder, texts: list[PreparedText]) -> Callable[[], Encoded]:
        """Give the device a block; return what waits for its representations for each index."""
        from diffretriever.encoders.masked import MaskedEncoder

        if len(self._budgets) == 1:
            return encoder.launch(texts)
        assert isinstance(encoder, MaskedEncoder), "only such retrievers have budgets"
        return encoder.launch_cut(texts, list(self._budgets.values()))


def _finite_only(block: pa.Table, encoded: list[Representations]) -> tuple[pa.Table, list[Representations], list[str]]:
    """Return the passages whose representations are all finite, these, and the ids of the other passages."""
    wrong_P = reduce(np.union1d, map(not_finite, encoded))
    if not len(wrong_P):
        return block, encoded, []
    kept_P = np.setdiff1d(np.arange(len(block)), wrong_P)
    ids = block.column("id").take(pa.array(wrong_P)).to_pylist()
    return block.take(pa.array(kept_P)), [each.take(kept_P) for each in encoded], ids


class StoreBlocks:
    """Writes each block's texts as they are, for retrievers that encode nothing (BM25)."""

    def __init__(self, uri: str) -> None:
        self._writer = BlockWriter(uri)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Write each block; yield its receipt."""
        for key, table in unpack(rows):
            yield _receipt(key, [self._writer.write(table)], table, not_finite=[], tokens=0, padded_tokens=0)


def _receipt(key: str, receipts: list[str], table: pa.Table, **rest: Any) -> pa.Table:
    """Return a row of `RECEIPT_SCHEMA`; what is not said is None."""
    row = {"key": key, "receipts": receipts, "ids": table.column("id").to_pylist(), **rest}
    assert row.keys() <= set(RECEIPT_SCHEMA.names), "the schema names all that a receipt says"
    return pa.Table.from_pylist([row], schema=RECEIPT_SCHEMA)


class DeviceUse:
    """How much of encoders' devices a job used: adds up what receipts say; see `RECEIPT_SCHEMA`."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}
        self._computed = 0.0
        self.peak_memory: int | None = None
        """Most bytes of an encoder; None where nothing was encoded."""

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Count a block, unless no encoder wrote it."""
        name = receipt["encoder"]
        if name is None:
            return
        began, ended = self._spans.get(name, (receipt["began"], receipt["ended"]))
        self._spans[name] = min(began, receipt["began"]), max(ended, receipt["ended"])
        self._computed += receipt["device_seconds"]
        self.peak_memory = max(self.peak_memory or 0, receipt["peak_memory"])

    @property
    def share(self) -> float | None:
        """Of the time from the beginning of an encoder's first block to the end of its last, in which it computed.

        None where nothing was encoded.
        """
        seconds = sum(ended - began for began, ended in self._spans.values())
        # A GPU's clock is not the host's.
        return min(1.0, self._computed / seconds) if seconds else None


def query_block(queries: Sequence[Query], budget: int | None) -> pa.Table:
    """Return queries as a block to encode with K_q = `budget`, or with the configured one."""
    columns = {"text": pa.array([query.text for query in queries], pa.string())}
    if budget is not None:
        columns[_BUDGET] = pa.array([budget] * len(queries), pa.int32())
    return pa.table(columns)


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
