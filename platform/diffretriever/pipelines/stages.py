"""What runs in Ray workers: preparing, encoding and writing blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diffretriever.index.writer import beside, write_block
from diffretriever.pipelines.blocks import pack, unpack
from schemas.passages import TEXT_SCHEMA
from schemas.retriever import RETRIEVER_ADAPTER, NeuralRetriever

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder

RECEIPT_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("receipt", pa.string()),
        ("ids", pa.list_(pa.string())),
        ("tokens", pa.int64()),
        ("padded_tokens", pa.int64()),
        ("seconds", pa.float64()),
    ]
)


@cache
def _preparer(retriever_json: str) -> Any:
    from diffretriever.encoders import load_preparer

    return load_preparer(RETRIEVER_ADAPTER.validate_json(retriever_json))  # type: ignore[arg-type]


def prepare_blocks(rows: pa.Table, retriever_json: str) -> Iterator[pa.Table]:
    """Tokenise each block's passages and find their content words."""
    from diffretriever.encoders.prepared import to_arrow

    preparer = _preparer(retriever_json)
    for key, table in unpack(rows):
        titles, texts = table.column("title").to_pylist(), table.column("text").to_pylist()
        prepared = to_arrow(preparer.prepare_passages(titles, texts))
        yield pack(key, beside(table, prepared))


def load_in_actor(retriever_json: str, device: str, threads: int) -> Encoder:
    """Load the encoder of an actor, which works with so many threads from then on."""
    import torch

    from diffretriever.encoders import load_encoder

    torch.set_num_threads(threads)
    config: NeuralRetriever = RETRIEVER_ADAPTER.validate_json(retriever_json)  # type: ignore[assignment]
    return load_encoder(config, device)


class EncodeBlocks:
    """An encoder actor: prepared blocks in, receipts of written fragments out."""

    def __init__(self, retriever_json: str, uri: str, device: str, threads: int) -> None:
        self._encoder = load_in_actor(retriever_json, device, threads)
        self._uri = uri

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode and write each block; nothing becomes visible before the driver commits the receipt."""
        from diffretriever.encoders.prepared import from_arrow

        for key, table in unpack(rows):
            start = time.perf_counter()
            representations = self._encoder.encode(from_arrow(table)).to_arrow()
            receipt = write_block(self._uri, beside(table.select(TEXT_SCHEMA.names), representations))
            cost = self._encoder.cost
            yield _receipt(key, receipt, table, cost.tokens, cost.padded_tokens, time.perf_counter() - start)


def store_blocks(rows: pa.Table, uri: str) -> Iterator[pa.Table]:
    """Write each block's texts as they are, for retrievers that encode nothing (BM25)."""
    for key, table in unpack(rows):
        start = time.perf_counter()
        yield _receipt(key, write_block(uri, table), table, 0, 0, time.perf_counter() - start)


def _receipt(key: str, receipt: str, table: pa.Table, tokens: int, padded: int, seconds: float) -> pa.Table:
    ids = table.column("id").to_pylist()
    return pa.table(
        {
            "key": [key],
            "receipt": [receipt],
            "ids": [ids],
            "tokens": [tokens],
            "padded_tokens": [padded],
            "seconds": [seconds],
        },
        schema=RECEIPT_SCHEMA,
    )
