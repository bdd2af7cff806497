"""Computes logits of given tokens, and recovers hidden states from stored vectors.

Legend: B batch, P positions, H hidden size, V vocabulary, T given tokens, M vectors, N dimensions in which the final
norm's weight is not near zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SWITCHED_OFF = 1e-3
"""Threshold relative to the norm's largest weight. Dimensions with smaller weights, 3 of 384 in MiniLM, are ignored,
because their input cannot be recovered."""


def chosen_logits(projection: nn.Module, states_BPH: Tensor, token_ids: Tensor) -> Tensor:
    """Return the logits [B, P, T] of `token_ids`, [T] for all rows or [B, T], without computing others."""
    batch, positions, _ = states_BPH.shape
    if not isinstance(projection, nn.Linear):
        # A head with an adapter computes more than rows of its weight.
        index_BPT = token_ids.expand(batch, -1).unsqueeze(1).expand(-1, positions, -1)
        adapted_BPV: Tensor = projection(states_BPH)
        return adapted_BPV.gather(-1, index_BPT)
    logits_BPT = states_BPH @ projection.weight[token_ids].transpose(-1, -2)
    if projection.bias is None:
        return logits_BPT
    return logits_BPT + projection.bias[token_ids].expand(batch, -1).unsqueeze(1)


def as_states(directions_MH: Tensor, weight_H: Tensor, bias_H: Tensor | None) -> Tensor:
    """Scale vectors to the length that final hidden states have in their direction, float32 [M, H].

    States after RMSNorm or LayerNorm are on an ellipsoid: state = weight · z + bias with |z|² = H. So a state's length
    follows from its direction, up to rounding and the norm's epsilon. Means of states become longer; zero stays zero.
    `weight_H` and `bias_H` are the norm's.
    """
    weight_H = weight_H.float()
    is_on_H = weight_H.abs() > _SWITCHED_OFF * weight_H.abs().max()
    ray_MN = directions_MH.float()[:, is_on_H] / weight_H[is_on_H]
    centre_N = torch.zeros_like(ray_MN[0]) if bias_H is None else bias_H.float()[is_on_H] / weight_H[is_on_H]
    # Solve |length · ray - centre|² = N for the solution along the ray.
    square_M = ray_MN.square().sum(1).clamp(min=torch.finfo(torch.float32).tiny)
    along_M = ray_MN @ centre_N
    outside = centre_N.square().sum() - len(centre_N)
    length_M = (along_M + (along_M.square() - square_M * outside).clamp(min=0).sqrt()) / square_M
    return directions_MH.float() * length_M[:, None]
