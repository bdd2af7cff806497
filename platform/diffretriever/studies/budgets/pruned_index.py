"""An index with fewer vectors.

Legend: N vectors of the table, M vectors of a batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import BlockWriter, Committer, WriterLock, join_columns
from diffretriever.vectors.representations import Representations, offsets_of

_BATCH_ROWS = 4096


def write_pruned(index: PassageIndex, kept_N: np.ndarray, uri: str) -> PassageIndex:
    """Write the passages of `index` with the vectors `kept_N` (bool [N]), in fp16, to a new index and return it."""
    columns = list(dict.fromkeys([*(name for name in index.dataset.schema.names if name != "codes"), "reps"]))
    receipts: dict[str, str] = {}
    start = 0
    with WriterLock(uri):
        pruned = PassageIndex.create(uri, index.manifest.model_copy(update={"codec": None}))
        writer = BlockWriter(uri)
        for batch in index.batches(columns, _BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            whole = Representations.from_arrow(table)
            own_M = kept_N[start : start + len(whole.vectors_MH)]
            start += len(own_M)
            representations = replace(
                whole,
                vectors_MH=whole.vectors_MH[own_M],
                offsets=offsets_of(own_M)[whole.offsets],
                slot_tokens=whole.slot_tokens[own_M],
            )
            block = join_columns(table.select(index.manifest.text_columns), representations.to_arrow())
            receipts[str(len(receipts))] = writer.write(block)
        Committer(pruned).commit(receipts, [])
    return pruned
