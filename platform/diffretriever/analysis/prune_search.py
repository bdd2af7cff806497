"""Exact dense search of passages in memory with some of their vectors left out.

Legend: N vectors of all passages, P passages, M query vectors, C chosen passages, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diffretriever.encoders.representations import Representations
from diffretriever.scoring.exact import FP32_ROUNDING, exact_scores, possible
from diffretriever.scoring.maxsim import maxsim
from diffretriever.scoring.topk import top_k

_QUERIES_AT_ONCE = 32


def kept_offsets(offsets: np.ndarray, kept_N: np.ndarray) -> np.ndarray:
    """Return the offsets of passages, int64 [P + 1], when only the vectors `kept_N` (bool [N]) are left."""
    before = np.concatenate([[0], np.cumsum(kept_N)]).astype(np.int64)
    found: np.ndarray = before[offsets]
    return found


def search_kept(
    queries: Representations, vectors_NH: np.ndarray, offsets: np.ndarray, passage_ids: Sequence[str], k: int
) -> list[list[tuple[str, float]]]:
    """Return each query's best k passages by mean MaxSim (paper Eq. 2), scores as every other search has them.

    A matrix product finds the passages that can be among the best, and the fp32 kernel of all searches scores them.

    Args:
        queries: encoded.
        vectors_NH: float32 [N, H], those that are left, unit length.
        offsets: int64 [P + 1], into those; a passage without any is not found.
        passage_ids: P ids.
        k: at least 1.
    """
    ids_P = np.array(passage_ids, dtype=object)
    stored_NH = torch.from_numpy(vectors_NH)
    hits = []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        part = queries.take(np.arange(start, min(start + _QUERIES_AT_ONCE, len(queries))))
        query_MH = part.vectors_MH.astype(np.float32)
        scores_QP = maxsim(torch.from_numpy(query_MH), part.offsets, stored_NH, offsets).numpy()
        for query, scores_P in enumerate(scores_QP):
            chosen_C = possible(scores_P, FP32_ROUNDING, k)
            own_MH = query_MH[part.offsets[query] : part.offsets[query + 1]]
            exact_C = exact_scores(own_MH, vectors_NH, offsets, chosen_C)
            hits.append(list(top_k(exact_C, ids_P[chosen_C].tolist(), k)))
    return hits
