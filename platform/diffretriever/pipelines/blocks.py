"""The unit of work: a block of passages, encoded together, written together, committed together.

Ray Data merges and splits its own blocks as it sees fit. A block of passages therefore travels as one row: its task
key and its table as Arrow IPC bytes, so that its boundaries and its key are the same in every attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from diffretriever.collections import Collection, Passage, ScanResult
from diffretriever.index.writer import text_table
from schemas.retriever import RetrieverConfig

_BLOCK_BYTES = 32 << 20
_MAX_ROWS = 512
_MIN_ROWS = 32
_TEXT_BYTES = 4096


def rows_per_block(retriever: RetrieverConfig, hidden_size: int | None) -> int:
    """Return how many passages keep a block near 32 MB, from K_p and H; between 32 and 512."""
    row_bytes = _TEXT_BYTES + retriever.max_vectors("passage") * (hidden_size or 0) * 2
    return max(_MIN_ROWS, min(_MAX_ROWS, _BLOCK_BYTES // row_bytes))


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


def read_blocks(collection: Collection, scanned: ScanResult, rows: int) -> Iterator[pa.Table]:
    """Yield the wanted passages of a scanned collection, a packed block at a time."""
    passages = scanned.kept(collection)
    while chunk := list(islice(passages, rows)):
        yield pack(_task_key(chunk), text_table(chunk, collection.name))


def _task_key(passages: Iterable[Passage]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for passage in passages:
        digest.update(f"{passage.id}\x1f".encode() + passage.digest)
    return digest.hexdigest()
