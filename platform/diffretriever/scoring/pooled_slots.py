"""The dense score of averaged slots: what late interaction is weighed against (paper §6.1).

Legend: T texts, Q queries, P passages, M vectors of all queries together, N vectors of all passages together,
H hidden size.
"""

from __future__ import annotations

import numpy as np
import torch


def pooled_slot_scores(
    query_vectors_MH: torch.Tensor,
    query_offsets: np.ndarray,
    passage_vectors_NH: torch.Tensor,
    passage_offsets: np.ndarray,
) -> torch.Tensor:
    """Score every query against every passage by the inner product of their mean vectors.

    Means are over a text's non-zero vectors and are not normalised again: the paper says nothing of it, the authors'
    code does not (reference §4.1). So a passage whose slots agree counts more than one whose slots point apart. A
    query without vectors scores 0 everywhere; a passage without vectors scores -inf, as in `maxsim`.

    Args:
        query_vectors_MH: [M, H] of any floating dtype; query i owns rows offsets[i] to offsets[i + 1].
        query_offsets: int64 [Q + 1], on the host.
        passage_vectors_NH: [N, H] of any floating dtype, on the same device.
        passage_offsets: int64 [P + 1], on the host.

    Returns:
        fp32 [Q, P], on that device.

    Raises:
        ValueError: the two sides have different hidden sizes.
    """
    if query_vectors_MH.shape[1] != passage_vectors_NH.shape[1]:
        sizes = f"{query_vectors_MH.shape[1]} and {passage_vectors_NH.shape[1]}"
        raise ValueError(f"queries and passages have vectors of {sizes} dimensions: encode both with one retriever")
    scores_QP = mean_slots(query_vectors_MH, query_offsets) @ mean_slots(passage_vectors_NH, passage_offsets).T
    empty_P = torch.from_numpy(np.diff(passage_offsets) == 0).to(scores_QP.device)
    return scores_QP.masked_fill(empty_P[None, :], -torch.inf)


def mean_slots(vectors_NH: torch.Tensor, offsets: np.ndarray) -> torch.Tensor:
    """Return fp32 [T, H]: the mean of each text's non-zero vectors, zero for a text that has none.

    Args:
        vectors_NH: [N, H] of any floating dtype; text i owns rows offsets[i] to offsets[i + 1].
        offsets: int64 [T + 1], on the host.
    """
    counts = np.diff(offsets)
    assert offsets[0] == 0, "offsets start at 0"
    assert offsets[-1] == len(vectors_NH), "offsets end at the number of vectors"
    owner_N = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(vectors_NH.device)
    vectors_NH = vectors_NH.float()
    sums_TH = vectors_NH.new_zeros(len(counts), vectors_NH.shape[1]).index_add(0, owner_N, vectors_NH)
    used_N = vectors_NH.any(dim=1).float()
    used_T = vectors_NH.new_zeros(len(counts)).index_add(0, owner_N, used_N)
    return sums_TH / used_T.clamp(min=1)[:, None]
