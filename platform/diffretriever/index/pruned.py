"""An index of its own with fewer slots for its passages, written from another index in one commit.

Legend: N vectors of all passages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock, beside, write_block
from schemas.manifest import IndexManifest
from schemas.passages import TEXT_SCHEMA

_BATCH_ROWS = 4096


def write_pruned(index: PassageIndex, kept_N: np.ndarray, uri: str) -> PassageIndex:
    """Write the passages of `index` with some of their vectors; return the new index. Impacts stay as they are.

    The vectors are stored as they are read, in fp16, whatever codec `index` has. A search finds a passage by what is
    left of it. Passages that are added later keep all of their slots.

    Args:
        index: to be left as it is.
        kept_N: bool [N], in the order of the table.
        uri: folder or object-store URI of the new index.

    Raises:
        ValueError: an index with passages is there already.
    """
    manifest = index.manifest.model_copy(update={"codec": None})
    with WriterLock(uri):
        pruned = _empty(uri, manifest)
        receipts = {str(number): write_block(uri, table) for number, table in enumerate(_tables(index, kept_N))}
        Committer(pruned).commit(receipts, [])
    return pruned


def _empty(uri: str, manifest: IndexManifest) -> PassageIndex:
    """Create the index; what an attempt that was killed has left is as good, for all comes in one commit."""
    if not PassageIndex.exists(uri):
        return PassageIndex.create(uri, manifest)
    found = PassageIndex.open(uri)
    if len(found) or found.manifest.fingerprint != manifest.fingerprint:
        raise ValueError(f"{uri} already holds an index: name another folder, or remove it")
    return found


def _tables(index: PassageIndex, kept_N: np.ndarray) -> Iterator[pa.Table]:
    columns = [name for name in index.dataset.schema.names if name != "codes"]
    columns += [] if "reps" in columns else ["reps"]
    start = 0
    for batch in index.batches(columns, _BATCH_ROWS):
        table = pa.Table.from_batches([batch])
        whole = Representations.from_arrow(table)
        own_M = kept_N[start : start + len(whole.vectors_MH)]
        start += len(whole.vectors_MH)
        before = np.concatenate([[0], np.cumsum(own_M)]).astype(np.int64)
        pruned = replace(
            whole,
            vectors_MH=whole.vectors_MH[own_M],
            offsets=before[whole.offsets],
            slot_tokens=whole.slot_tokens[own_M],
        ).to_arrow()
        yield beside(table.select(TEXT_SCHEMA.names), pruned)
