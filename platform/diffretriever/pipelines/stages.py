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
    from diffretriever.encoders.representations import Representations

RECEIPT_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("receipts", pa.list_(pa.string())),
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

    def __init__(self, retriever_json: str, budgets: dict[str, int], device: str, threads: int) -> None:
        """`budgets`: K_p of each index to write, by its uri; several only of a retriever with nested slots."""
        self._encoder = load_in_actor(retriever_json, device, threads)
        self._budgets = budgets

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode and write each block; nothing becomes visible before the driver commits the receipt."""
        for key, table in unpack(rows):
            start = time.perf_counter()
            texts = table.select(TEXT_SCHEMA.names)
            found = zip(self._budgets, self._encoded(table), strict=True)
            receipts = [write_block(uri, beside(texts, each.to_arrow())) for uri, each in found]
            cost = self._encoder.cost
            yield _receipt(key, receipts, table, cost.tokens, cost.padded_tokens, time.perf_counter() - start)

    def _encoded(self, table: pa.Table) -> list[Representations]:
        from diffretriever.encoders.masked import MaskedEncoder
        from diffretriever.encoders.prepared import from_arrow

        texts = from_arrow(table)
        if len(self._budgets) == 1:
            return [self._encoder.encode(texts)]
        assert isinstance(self._encoder, MaskedEncoder), "only such retrievers have budgets"
        return self._encoder.encode_cut(texts, list(self._budgets.values()))


def store_blocks(rows: pa.Table, uri: str) -> Iterator[pa.Table]:
    """Write each block's texts as they are, for retrievers that encode nothing (BM25)."""
    for key, table in unpack(rows):
        start = time.perf_counter()
        yield _receipt(key, [write_block(uri, table)], table, 0, 0, time.perf_counter() - start)


def _receipt(key: str, receipts: list[str], table: pa.Table, tokens: int, padded: int, seconds: float) -> pa.Table:
    ids = table.column("id").to_pylist()
    return pa.table(
        {
            "key": [key],
            "receipts": [receipts],
            "ids": [ids],
            "tokens": [tokens],
            "padded_tokens": [padded],
            "seconds": [seconds],
        },
        schema=RECEIPT_SCHEMA,
    )
