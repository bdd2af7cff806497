"""What workers do to blocks of passages: prepare them, encode and write them, or write them as they are.

An encoder actor has several blocks in hand, each in a thread of its own: while one is on the device, another is
normalised, made to a table and written, so that the device waits for nobody.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from diffretriever.encoders.representations import not_finite
from diffretriever.index.writer import BlockWriter, beside
from diffretriever.pipelines.encoders import EncoderStart, StartedEncoder, preparer_of
from diffretriever.pipelines.streams import pack, unpack

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.launching import Encoded
    from diffretriever.encoders.preparer import PreparedText, Preparer
    from diffretriever.encoders.representations import Representations

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
