"""How different the slots of a text are, and which passage slot answers each query slot under MaxSim (paper Eq. 2).

Legend: A query slots, B passage slots, T texts, N vectors of all texts, H hidden size.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def mean_pairwise_cosines(vectors_NH: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the mean cosine over the pairs of each text's slots, float64 [T]; NaN for a text of fewer than two.

    1 says that all slots of a text are one vector, and more slots buy nothing.

    Args:
        vectors_NH: floating [N, H], none of them zero.
        offsets: int64 [T + 1]; text i owns rows offsets[i] to offsets[i + 1].
    """
    cosines_T = np.full(len(offsets) - 1, np.nan)
    for text, (first, end) in enumerate(pairwise(offsets.tolist())):
        count = end - first
        if count < 2:
            continue
        own_KH = vectors_NH[first:end].astype(np.float64)
        own_KH /= np.linalg.norm(own_KH, axis=1, keepdims=True)
        # The square of a sum holds every pair twice, and every vector once with itself.
        total_H = own_KH.sum(axis=0)
        cosines_T[text] = (total_H @ total_H - count) / (count * (count - 1))
    return cosines_T


def winning_slots(query_AH: np.ndarray, passage_BH: np.ndarray) -> np.ndarray:
    """Return for each query slot the passage slot that MaxSim takes, int64 [A]; of equal ones the first.

    Args:
        query_AH: floating [A, H].
        passage_BH: floating [B, H], at least one slot.
    """
    places_A: np.ndarray = (query_AH.astype(np.float64) @ passage_BH.astype(np.float64).T).argmax(axis=1)
    return places_A


def slots_in_use(shares_B: np.ndarray) -> float:
    """Return two to the entropy of the shares of wins: B where all slots win alike, 1 where one wins always.

    Args:
        shares_B: float64 [B], of sum 1.
    """
    won = shares_B[shares_B > 0]
    return float(2.0 ** -(won * np.log2(won)).sum())
