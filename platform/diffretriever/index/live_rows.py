"""Which passages of a fragment a version of the table still has, for files beside the table that outlive deletions."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffretriever.index.table import PassageIndex


def rows_written(addresses: np.ndarray) -> np.ndarray:
    """Return uint32: each passage's place among the rows that its fragment was written with, from `_rowaddr`."""
    return (addresses & 0xFFFFFFFF).astype(np.uint32)


def live_rows(index: PassageIndex, fragment: Any, rows_P: np.ndarray) -> np.ndarray:
    """Return bool [P]: which of `rows_P` (uint32 [P]) are in `index`. All of the fragment that are must be given."""
    if len(rows_P) == fragment.count_rows():
        return np.ones(len(rows_P), bool)
    batches = index.fragment_batches(fragment, [], 65536)
    live = [rows_written(batch.column("_rowaddr").to_numpy()) for batch in batches]
    return np.isin(rows_P, np.concatenate([*live, np.empty(0, np.uint32)]), assume_unique=True)
