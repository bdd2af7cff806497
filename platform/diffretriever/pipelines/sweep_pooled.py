"""Search by averaged slots, what MaxSim is weighed against (paper §6.1): one pass for all queries, same bits always.

Legend: Q queries, P passages of a batch, M query vectors, N passage vectors, C chosen passages, H hidden size.
"""

from __future__ import annotations

import numpy as np
import torch

from diffretriever.encoders.representations import Representations, read_vectors
from diffretriever.index.finite import finite_rows
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.exact import FP32_ROUNDING, exact_scores, possible
from diffretriever.scoring.pooled_slots import mean_slots
from diffretriever.scoring.topk import Hits, TopK

_BATCH_ROWS = 4096


def search_pooled(index: PassageIndex, queries: Representations, k: int) -> Hits:
    """Return each query's best k passages by the inner product of mean slots, neither mean normalised again.

    A matrix product finds the passages, and one fp32 kernel scores them, so that the scores of a query do not depend
    on the queries that it is searched with; `scoring.pooled_slots` says what is averaged.
    """
    queries_QH = _means(queries.vectors_MH, queries.offsets)
    lengths_Q = np.linalg.norm(queries_QH, axis=1)
    best = TopK(len(queries), k)
    for batch in finite_rows(index.uri, index.batches(["id", "reps"], _BATCH_ROWS)):
        stored_NH, offsets = read_vectors(batch)
        passages_PH = _means(stored_NH, offsets)
        ids_P = np.array(batch.column("id").to_pylist(), dtype=object)
        scores_QP = queries_QH @ passages_PH.T
        scores_QP[:, np.diff(offsets) == 0] = -np.inf
        slack_Q = FP32_ROUNDING * lengths_Q * np.linalg.norm(passages_PH, axis=1).max(initial=0)
        one_each = np.arange(len(ids_P) + 1)
        for query, scores_P in enumerate(scores_QP):
            chosen_C = possible(scores_P, float(slack_Q[query]), k, best.threshold(query))
            exact_C = exact_scores(queries_QH[query : query + 1], passages_PH, one_each, chosen_C)
            best.add_for(query, exact_C, ids_P[chosen_C])
    return best.results()


def _means(vectors_NH: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return float32 [number of texts, H]."""
    means: np.ndarray = mean_slots(torch.from_numpy(vectors_NH.astype(np.float32)), offsets).numpy()
    return means
