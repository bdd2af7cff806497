"""An encoder actor has several blocks in hand: while one is written, another is on the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch

from diffretriever.collections import Passage
from diffretriever.encoders.base import Encoder, ModelFacts
from diffretriever.encoders.preparer import NO_IDS, PreparedText, Preparer, to_arrow
from diffretriever.index.writer import BlockWriter, Committer, join_columns, text_table
from diffretriever.pipelines.blocks import RECEIPT_SCHEMA, DeviceUse, EncodeBlocks, pack
from diffretriever.pipelines.cluster import EncoderPool
from diffretriever.pipelines.ray_executor import actor_options, blocks_of, dataset_of
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.vectors.representations import Representations
from tests.index.compressed_cases import HIDDEN, fill, representations
from tests.index.index_cases import ids_of

SECONDS = 60
"""Only what is broken waits for so long."""
PER_BLOCK = 4


class MadeUpEncoder(Encoder):
    """Gives made-up vectors. From its second batch on it waits until a block is being written."""

    def __init__(self, writing: threading.Event, computed: threading.Event) -> None:
        facts = ModelFacts(torch.device("cpu"), "float32", HIDDEN, None, "w")
        super().__init__(MaskedRetriever.model_validate({"backbone": {"source": "x"}}), cast("Preparer", None), facts)
        self.batches = 0
        self._written, self._done = writing, computed

    @classmethod
    def load_preparer(cls, config: Any) -> Preparer:
        raise AssertionError

    @classmethod
    def load(cls, config: Any, device: str) -> MadeUpEncoder:
        raise AssertionError

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        self.batches += 1
        if self.batches > 1:
            assert self._written.wait(SECONDS), "no block is written while this one waits for the device"
            self._done.set()
        return representations(len(texts), seed=self.batches)


def blocks(count: int) -> Iterator[pa.Table]:
    prepared = to_arrow([PreparedText(np.arange(3, dtype=np.int32), 1, NO_IDS, NO_IDS, 3)] * PER_BLOCK)
    for number in range(count):
        passages = [Passage(f"b{number}-{i}", "", "text") for i in range(PER_BLOCK)]
        yield pack(f"block {number}", join_columns(text_table(passages, "c"), prepared))


def test_a_block_is_written_while_the_next_is_encoded(tmp_path: Path) -> None:
    """A slow writer waits for a later block to compute, and that block for the writer."""
    index = fill(str(tmp_path / "index"), 5)
    writing, computed = threading.Event(), threading.Event()
    stage = EncodeBlocks(MadeUpEncoder(writing, computed), {index.uri: 3})
    stage.setup()
    write = BlockWriter.write

    def slow(writer: BlockWriter, table: pa.Table) -> str:
        writing.set()
        assert computed.wait(SECONDS), "nothing computes while this block is written"
        return write(writer, table)

    with patch.object(BlockWriter, "write", slow), ThreadPoolExecutor(2) as threads:
        tables = [table for made in threads.map(lambda rows: list(stage(rows)), blocks(4)) for table in made]
    receipts = pa.concat_tables(tables)
    assert receipts.schema == RECEIPT_SCHEMA
    rows = receipts.to_pylist()
    Committer(index).commit({row["key"]: row["receipts"][0] for row in rows}, [])
    index.refresh()
    assert set(ids_of(index)) == {f"b{b}-{i}" for b in range(4) for i in range(PER_BLOCK)} | {f"p{i}" for i in range(5)}
    use = DeviceUse()
    for row in rows:
        use.add(row)
    assert use.share is not None
    assert 0 < use.share <= 1
    assert use.peak_memory == max(row["peak_memory"] for row in rows)


def test_a_failed_block_does_not_stop_the_others(tmp_path: Path) -> None:
    """They wait for nobody's turn for ever."""
    index = fill(str(tmp_path / "index"), 5)
    encoder = MadeUpEncoder(threading.Event(), threading.Event())
    stage, made = EncodeBlocks(encoder, {index.uri: 3}), 0
    stage.setup()

    def third_fails(texts: Sequence[PreparedText]) -> Representations:
        nonlocal made
        made += 1
        if made == 3:
            raise ValueError("the weights are broken")
        return representations(len(texts), seed=made)

    encoder.encode_batch = third_fails  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(lambda rows: list(stage(rows)), rows) for rows in blocks(6)]
        errors = [each.exception() for each in running]
    assert [str(error) for error in errors if error is not None] == ["the weights are broken"]


def receipt(*values: str | float | None) -> dict[str, Any]:
    return dict(zip(("encoder", "began", "ended", "device_seconds", "peak_memory"), values, strict=True))


def test_device_use_is_measured_by_each_encoders_clock() -> None:
    """Clocks of two machines have nothing in common."""
    use = DeviceUse()
    use.add(receipt("a", 100, 104, 3, 50))
    use.add(receipt("b", 7, 9, 1, 90))
    use.add(receipt("a", 102, 106, 2, 60))
    use.add(receipt(None, 0, 0, 0, 0))
    assert use.share == pytest.approx((3 + 2 + 1) / (6 + 2))
    assert use.peak_memory == 90
    assert (DeviceUse().share, DeviceUse().peak_memory) == (None, None)


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_an_actor_processes_two_blocks_concurrently() -> None:
    class Meeting:
        """Ends no block before another has begun."""

        def __init__(self) -> None:
            self._both = threading.Barrier(2)

        def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
            self._both.wait(120)
            yield rows

    rows = dataset_of([pack(name, pa.table({"row": [0]})) for name in ("a", "b", "c", "d")])
    options = actor_options(EncoderPool(1, 0.5, 0.0), at_once=2)
    assert sorted(key for key, _ in blocks_of(rows.map_batches(Meeting, **options))) == ["a", "b", "c", "d"]
