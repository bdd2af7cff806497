"""What runs in Ray workers: preparing, encoding and writing blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from diffretriever.encoders.base import BatchCost
from diffretriever.encoders.finite import not_finite
from diffretriever.index.writer import beside, write_block
from diffretriever.pipelines.blocks import pack, unpack
from schemas.passages import TEXT_SCHEMA
from schemas.retriever import RETRIEVER_ADAPTER, NeuralRetriever

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.representations import Representations

RECEIPT_SCHEMA = pa.schema(  # of a block: `ids` are written, `not_finite` are those that were left out
    [
        ("key", pa.string()),
        ("receipts", pa.list_(pa.string())),
        ("ids", pa.list_(pa.string())),
        ("not_finite", pa.list_(pa.string())),
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
        """Encode and write each block; nothing becomes visible before the driver commits the receipt.

        Passages whose vectors or impacts hold NaN or infinity are left out, and the receipt names them.
        """
        for key, block in unpack(rows):
            start = time.perf_counter()
            table, encoded, left_out = _finite_only(block, self._encoded(block))
            texts = table.select(TEXT_SCHEMA.names)
            found = zip(self._budgets, encoded, strict=True)
            receipts = [write_block(uri, beside(texts, each.to_arrow())) for uri, each in found]
            cost = self._encoder.cost
            yield _receipt(key, receipts, table, left_out, cost, time.perf_counter() - start)

    def _encoded(self, table: pa.Table) -> list[Representations]:
        from diffretriever.encoders.masked import MaskedEncoder
        from diffretriever.encoders.prepared import from_arrow

        texts = from_arrow(table)
        if len(self._budgets) == 1:
            return [self._encoder.encode(texts)]
        assert isinstance(self._encoder, MaskedEncoder), "only such retrievers have budgets"
        return self._encoder.encode_cut(texts, list(self._budgets.values()))


def _finite_only(block: pa.Table, encoded: list[Representations]) -> tuple[pa.Table, list[Representations], list[str]]:
    """Return the passages whose representations are all finite, these, and the ids of the other passages."""
    wrong_P = reduce(np.union1d, map(not_finite, encoded))
    if not len(wrong_P):
        return block, encoded, []
    kept_P = np.setdiff1d(np.arange(len(block)), wrong_P)
    ids = block.column("id").take(pa.array(wrong_P)).to_pylist()
    return block.take(pa.array(kept_P)), [each.take(kept_P) for each in encoded], ids


def store_blocks(rows: pa.Table, uri: str) -> Iterator[pa.Table]:
    """Write each block's texts as they are, for retrievers that encode nothing (BM25)."""
    for key, table in unpack(rows):
        start = time.perf_counter()
        receipts = [write_block(uri, table)]
        yield _receipt(key, receipts, table, [], BatchCost(0, 0), time.perf_counter() - start)


def _receipt(
    key: str, receipts: list[str], table: pa.Table, left_out: list[str], cost: BatchCost, seconds: float
) -> pa.Table:
    return pa.table(
        {
            "key": [key],
            "receipts": [receipts],
            "ids": [table.column("id").to_pylist()],
            "not_finite": [left_out],
            "tokens": [cost.tokens],
            "padded_tokens": [cost.padded_tokens],
            "seconds": [seconds],
        },
        schema=RECEIPT_SCHEMA,
    )
