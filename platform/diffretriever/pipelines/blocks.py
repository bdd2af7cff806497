"""Write batches ("blocks") of passages or queries, and the stages that process them in workers.

A block is encoded, written and committed as a whole. It travels as one row, key and Arrow IPC bytes, because Ray Data
splits and merges its own blocks. An encoder actor handles several blocks in threads, to keep the GPU busy.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from diffretriever.backbones.source import FetchError
from diffretriever.collections import Passage, Query, ScanResult
from diffretriever.collections.metadata import WithMetadata
from diffretriever.collections.scanning import ScannedPart
from diffretriever.index.writer import BlockWriter, join_columns, text_table
from diffretriever.pipelines.encoder_start import EncoderStart
from diffretriever.schemas.retriever import RetrieverConfig
from diffretriever.vectors.representations import not_finite

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.vectors.representations import Representations

Receipt: TypeAlias = dict[str, Any]
"""A row of `RECEIPT_SCHEMA`."""

QUERIES_PER_BLOCK = 256
_BLOCK_BYTES = 32 << 20
# Fewer passages do not fill the encoder's batches; more are lost when a worker is killed.
_MIN_ROWS, MAX_ROWS = 32, 512
# Approximate size of a passage without its vectors.
_TEXT_BYTES = 4096
_BUDGET = "budget"
RECEIPT_SCHEMA = pa.schema(  # of a block: `ids` are written, `not_finite` are those that were left out
    [
        ("key", pa.string()),
        ("receipts", pa.list_(pa.string())),
        ("ids", pa.list_(pa.string())),
        ("not_finite", pa.list_(pa.string())),
        ("tokens", pa.int64()),
        ("padded_tokens", pa.int64()),
        # The encoder's name, its monotonic clock at start and end, the seconds the device spent on this block, and peak
        # memory in bytes. None if nothing was encoded.
        ("encoder", pa.string()),
        ("began", pa.float64()),
        ("ended", pa.float64()),
        ("device_seconds", pa.float64()),
        ("peak_memory", pa.int64()),
    ]
)


def rows_per_block(retriever: RetrieverConfig, hidden_size: int | None) -> int:
    """Return the number of passages, 32 to 512, that makes a block about 32 MB."""
    row_bytes = _TEXT_BYTES + retriever.max_vectors("passage") * (hidden_size or 0) * 2
    return max(_MIN_ROWS, min(MAX_ROWS, _BLOCK_BYTES // row_bytes))


@dataclass(frozen=True, slots=True)
class PassageBlocks:
    """The passages to encode, in blocks."""

    collection: WithMetadata
    scanned: ScanResult
    """Which passages."""
    rows: int
    """Passages of a block."""

    @property
    def count(self) -> int:
        """Number of blocks."""
        return math.ceil(self.scanned.n_kept / self.rows)

    def readers(self) -> list[Callable[[], Iterator[pa.Table]]]:
        """Return a function for each part of the collection that yields its packed blocks."""
        return [partial(_read_part, self.collection, part, self.rows) for part in self.scanned.parts if part.n_kept]

    def __iter__(self) -> Iterator[pa.Table]:
        return chain.from_iterable(read() for read in self.readers())


def _read_part(collection: WithMetadata, part: ScannedPart, rows: int) -> Iterator[pa.Table]:
    passages = part.kept(collection)
    while chunk := list(islice(passages, rows)):
        yield pack(_block_key(chunk), text_table(chunk, collection.name, collection.columns))


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


class Stage(ABC):
    """A processing step for packed blocks; each worker calls `setup` once."""

    workers: ClassVar[Literal["preparers", "encoders", "searchers"]]
    """Workers that run it."""
    overlaps: ClassVar[bool] = False
    """Whether a worker processes several blocks concurrently, one per thread."""

    @abstractmethod
    def setup(self) -> None:
        """Load what the worker needs."""

    @abstractmethod
    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Process the blocks in `rows`; yield the results."""


class EncoderStage(Stage):
    """A stage with an encoder."""

    workers = "encoders"

    def __init__(self, start: EncoderStart | Encoder) -> None:
        """Take the encoder, or the settings from which a worker loads it."""
        self._start = start

    def setup(self) -> None:
        """Load the encoder, unless it is passed.

        Ray Data replaces an actor that fails to start. A user error would recur there, so the first block raises it.

        Raises:
            FetchError: This node could not fetch the model from the hub.
        """
        self._loaded: Encoder | ValueError
        try:
            self._loaded = self._start.load() if isinstance(self._start, EncoderStart) else self._start
        except FetchError:
            raise
        except ValueError as error:
            self._loaded = error

    @property
    def encoder(self) -> Encoder:
        """The encoder; also sets torch's thread count, which each thread has for itself.

        Raises:
            ValueError: It could not be loaded, or its weights differ from the job's.
        """
        if isinstance(self._loaded, ValueError):
            raise self._loaded
        if isinstance(self._start, EncoderStart):
            import torch

            torch.set_num_threads(self._start.config.encoder_threads)
        return self._loaded


class PrepareBlocks(Stage):
    """Tokenises passages and adds columns with their tokens and content words."""

    workers = "preparers"

    def __init__(self, start: EncoderStart | Encoder) -> None:
        """Take the encoder, or the settings from which a worker loads its preparer."""
        self._start = start

    def setup(self) -> None:
        """Load the tokenizer."""
        self._preparer = self._start.preparer

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield each block with the columns of its prepared passages."""
        from diffretriever.encoders.preparer import to_arrow

        for key, table in unpack(rows):
            titles, texts = table.column("title").to_pylist(), table.column("text").to_pylist()
            yield pack(key, join_columns(table, to_arrow(self._preparer.prepare_passages(titles, texts))))


class EncodeBlocks(EncoderStage):
    """Encodes prepared blocks, writes them as uncommitted fragments and yields their receipts."""

    overlaps = True

    def __init__(self, start: EncoderStart | Encoder, budgets: dict[str, int]) -> None:
        """Take the encoder or its settings, and `budgets`: uri → K_p of each index."""
        super().__init__(start)
        self._budgets = budgets

    def setup(self) -> None:
        """Load the encoder, and open the indexes for writing."""
        super().setup()
        self._writers = [BlockWriter(uri) for uri in self._budgets]
        self._name = uuid.uuid4().hex
        # One block at a time on the device: interleaved blocks would finish together and leave it idle.
        self._turn = threading.Lock()

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode and write each block; the driver commits the receipts.

        Passages with NaN or infinity are left out, and the receipt lists them.

        Raises:
            ValueError: The encoder could not be loaded, or its weights differ from the index's.
        """
        from diffretriever.backbones.device import peak_memory
        from diffretriever.encoders.preparer import from_arrow

        encoder = self.encoder
        budgets = list(self._budgets.values()) if len(self._budgets) > 1 else []
        for key, block in unpack(rows):
            began = time.monotonic()
            prepared = from_arrow(block)
            with self._turn:
                submitted = encoder.submit(prepared, budgets)
            encoded = submitted.result()
            table, parts, left_out = _finite_only(block, encoded.parts)
            texts = table.select(self._writers[0].text_columns)
            tables = [join_columns(texts, representations.to_arrow()) for representations in parts]
            receipts = [writer.write(part) for writer, part in zip(self._writers, tables, strict=True)]
            yield _receipt(
                key,
                receipts,
                table,
                not_finite=left_out,
                tokens=encoded.tokens,
                padded_tokens=encoded.padded_tokens,
                encoder=self._name,
                began=began,
                ended=time.monotonic(),
                device_seconds=encoded.device_seconds,
                peak_memory=peak_memory(encoder.facts.device),
            )


def _finite_only(block: pa.Table, encoded: list[Representations]) -> tuple[pa.Table, list[Representations], list[str]]:
    wrong_P = reduce(np.union1d, map(not_finite, encoded))
    if not len(wrong_P):
        return block, encoded, []
    kept_P = np.setdiff1d(np.arange(len(block)), wrong_P)
    ids = block.column("id").take(pa.array(wrong_P)).to_pylist()
    return block.take(pa.array(kept_P)), [representations.take(kept_P) for representations in encoded], ids


class StoreBlocks(Stage):
    """Writes the texts of blocks, for retrievers without an encoder (BM25)."""

    workers = "preparers"

    def __init__(self, uri: str) -> None:
        """`uri` is the index."""
        self._uri = uri

    def setup(self) -> None:
        """Open the index for writing blocks."""
        self._writer = BlockWriter(self._uri)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Write each block; yield its receipt."""
        for key, table in unpack(rows):
            yield _receipt(key, [self._writer.write(table)], table, not_finite=[], tokens=0, padded_tokens=0)


def _receipt(key: str, receipts: list[str], table: pa.Table, **rest: Any) -> pa.Table:
    """Return a row of `RECEIPT_SCHEMA`; missing fields are None."""
    row = {"key": key, "receipts": receipts, "ids": table.column("id").to_pylist(), **rest}
    assert row.keys() <= set(RECEIPT_SCHEMA.names), "the schema names all that a receipt says"
    return pa.Table.from_pylist([row], schema=RECEIPT_SCHEMA)


class DeviceUse:
    """GPU use of a job, summed over receipts; see `RECEIPT_SCHEMA`."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}
        self._computed = 0.0
        self.peak_memory: int | None = None
        """Peak memory of an encoder in bytes; None if nothing was encoded."""

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
        """Computing time as a share of the encoders' time from first to last block; None if nothing was encoded."""
        seconds = sum(ended - began for began, ended in self._spans.values())
        # GPU and host clocks differ.
        return min(1.0, self._computed / seconds) if seconds else None


def query_block(queries: Sequence[Query], budget: int | None) -> pa.Table:
    """Return queries as a block to encode with K_q = `budget`, or with the configured K_q."""
    columns = {"text": pa.array([query.text for query in queries], pa.string())}
    if budget is not None:
        columns[_BUDGET] = pa.array([budget] * len(queries), pa.int32())
    return pa.table(columns)


class EncodeQueries(EncoderStage):
    """Encodes blocks of query texts; yields their representations."""

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode each block."""
        encoder = self.encoder
        for key, table in unpack(rows):
            budgets = table.column(_BUDGET).to_pylist() if _BUDGET in table.column_names else None
            yield pack(key, encoder.encode_queries(table.column("text").to_pylist(), budgets).to_arrow())
