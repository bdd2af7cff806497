"""The dense score that searches return, and the choice of the passages for which it must be computed.

Searches find passages by whatever is fast (a matrix product, 8-bit codes, a candidate index) and then score the few
that matter here. So all of them return the same bits for the same pair, and equal passages tie exactly.

Legend: M query vectors, N vectors of all passages, P passages, C chosen passages, H hidden size.
"""

from __future__ import annotations

import numpy as np

from diffretriever.kernels import maxsim as kernels

FP32_ROUNDING = 2e-5
"""Most by which an fp32 product of two vectors differs from another order of summing, relative to their lengths."""


def exact_scores(query_MH: np.ndarray, vectors_NH: np.ndarray, offsets: np.ndarray, chosen_C: np.ndarray) -> np.ndarray:
    """Return float32 [C]: the mean MaxSim of one query with chosen passages (paper Eq. 2).

    Args:
        query_MH: float32 [M, H], at least one vector.
        vectors_NH: float32 [N, H].
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1]; without any it scores -inf.
        chosen_C: int64 [C].
    """
    scores_C = np.empty(len(chosen_C), np.float32)
    kernels.exact(vectors_NH, offsets, chosen_C, query_MH, scores_C)
    return scores_C


def possible(scores_P: np.ndarray, slack_P: np.ndarray | float, k: int, floor: float = -np.inf) -> np.ndarray:
    """Return which passages can be among the best k, int64 [C] ascending: those not surely below k others.

    Args:
        scores_P: floating [P], approximate; -inf is never chosen.
        slack_P: the most by which a score can be wrong.
        k: at least 1.
        floor: exact score below which a passage is out whatever the others have.
    """
    upper_P = scores_P + slack_P
    threshold = floor
    if len(scores_P) > k:
        lower_P = scores_P - slack_P
        threshold = max(floor, np.partition(lower_P, len(lower_P) - k)[len(lower_P) - k])
    return np.flatnonzero((upper_P >= threshold) & (scores_P > -np.inf))
