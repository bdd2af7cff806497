"""Search by averaged slots, the baseline of late interaction (paper §6.1).

A text's score is the inner product of its mean vector with the query's. A mean is one vector, so this is MaxSim of one
vector each, computed as in every other dense search: the scores of a query do not depend on the other queries.

Legend: Q queries, P passages of a batch, N vectors, T texts, H hidden size.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from diffretriever.index.damage import finite_rows
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import Way
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.hits import Hits, TopK
from diffretriever.vectors.maxsim import FP32_ROUNDING, Vectors, add_exact, contenders, longest
from diffretriever.vectors.representations import Representations, read_vectors

_BATCH_ROWS = 4096


class AveragedSlots(EncodedSearch):
    """Scores every passage by mean vectors; all queries share one pass over the table."""

    way: ClassVar[Way] = "averaged"

    def __init__(self, index: PassageIndex) -> None:
        self._index = index
        self._order = index.order

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages by the inner product of averaged slots."""
        asked = _means(queries.vectors_MH, queries.offsets)
        best = TopK(len(queries), k, self._order.passages)
        for batch in finite_rows(self._index.uri, self._index.addressed_batches(["id", "reps"], _BATCH_ROWS)):
            stored_NH, offsets = read_vectors(batch)
            passages = _means(stored_NH, offsets)
            scores_QP = asked.vectors_MH @ passages.vectors_MH.T
            scores_QP[:, np.diff(offsets) == 0] = -np.inf
            chosen = contenders(asked, scores_QP, FP32_ROUNDING * longest(passages.vectors_MH), best)
            numbers_P = self._order.numbers(batch.column("_rowaddr").to_numpy())
            add_exact(asked, passages, numbers_P, chosen, best)
        return best.results()


def _means(vectors_NH: np.ndarray, offsets: np.ndarray) -> Vectors:
    """Return one vector a text: the mean of its non-zero vectors, not normalised again; zero for a text without any.

    The paper does not normalise, and neither does the authors' `evaluate_sweep.py`. So a passage with slots that agree
    counts more than one with slots that point apart.
    """
    stored = torch.from_numpy(vectors_NH.astype(np.float32))
    owner_N = torch.from_numpy(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    sums_TH = stored.new_zeros(len(offsets) - 1, stored.shape[1]).index_add(0, owner_N, stored)
    used_T = stored.new_zeros(len(offsets) - 1).index_add(0, owner_N, stored.any(dim=1).float())
    return Vectors((sums_TH / used_T.clamp(min=1)[:, None]).numpy(), np.arange(len(offsets)))
