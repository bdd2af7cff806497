"""Search by averaged slots, the baseline of late interaction (paper §6.1).

A text's score is the inner product of its mean vector with the query's: MaxSim of one vector each.

Legend: Q queries, N vectors, T texts, H hidden size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import torch

from diffretriever.schemas.mode import Way
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations, offsets_of


class AveragedSlots(StreamingScan):
    """Scores every passage by mean vectors; passages without vectors are not retrieved."""

    way: ClassVar[Way] = "averaged"

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages by the inner product of averaged slots."""
        means_QH, offsets = _means(queries.vectors_MH, queries.offsets)
        return super().search(replace(queries, vectors_MH=means_QH, offsets=offsets), k)

    def _read(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        return _means(*super()._read(batch))


def _means(vectors_NH: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each text's mean of non-zero vectors, float32, and offsets; a text without vectors has none.

    The paper does not normalise means, and neither does the authors' `evaluate_sweep.py`. So a passage with slots that
    agree counts more than one with slots that point apart.
    """
    counts_T = np.diff(offsets)
    stored = torch.from_numpy(vectors_NH.astype(np.float32))
    owner_N = torch.from_numpy(np.repeat(np.arange(len(counts_T)), counts_T))
    sums_TH = stored.new_zeros(len(counts_T), stored.shape[1]).index_add(0, owner_N, stored)
    used_T = stored.new_zeros(len(counts_T)).index_add(0, owner_N, stored.any(dim=1).float())
    means_TH = sums_TH / used_T.clamp(min=1)[:, None]
    return means_TH.numpy()[counts_T > 0], offsets_of(counts_T > 0)
