"""Logits of chosen tokens, and the states that stored vectors were.

Legend: B batch, P positions, H hidden size, V vocabulary, T chosen tokens, M vectors, N dimensions that the final norm
does not switch off.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SWITCHED_OFF = 1e-3
"""Relative to the norm's largest weight. Smaller weights count as zero: the input cannot be recovered from the output
there, so the mean of the other dimensions is used. MiniLM has 3 such dimensions of 384."""


def chosen_logits(projection: nn.Module, states_BPH: Tensor, token_ids: Tensor) -> Tensor:
    """Return the logits [B, P, T] of tokens `token_ids`, [T] for all rows alike or [B, T].

    Only the rows of the projection that are asked for are multiplied.
    """
    batch, positions, _ = states_BPH.shape
    if not isinstance(projection, nn.Linear):
        # An adapter sits on the head: the rows of its weight are not all it computes.
        index_BPT = token_ids.expand(batch, -1).unsqueeze(1).expand(-1, positions, -1)
        adapted_BPV: Tensor = projection(states_BPH)
        return adapted_BPV.gather(-1, index_BPT)
    logits_BPT = states_BPH @ projection.weight[token_ids].transpose(-1, -2)
    if projection.bias is None:
        return logits_BPT
    return logits_BPT + projection.bias[token_ids].expand(batch, -1).unsqueeze(1)


def as_states(directions_MH: Tensor, weight_H: Tensor, bias_H: Tensor | None) -> Tensor:
    """Return float32 [M, H]: each direction of a final state with the length that a state has there.

    A norm leaves its states on an ellipsoid: state = weight · z + bias with |z|² = H, for RMSNorm and LayerNorm alike.
    So the length that a stored unit vector has lost follows from the weights of the norm, up to the rounding of the
    vector and the norm's epsilon. The mean of several states lies within the ellipsoid, and is made longer than it was.
    A direction of 0 stays 0. `weight_H` and `bias_H` are the norm's.
    """
    weight_H = weight_H.float()
    is_on_H = weight_H.abs() > _SWITCHED_OFF * weight_H.abs().max()
    ray_MN = directions_MH.float()[:, is_on_H] / weight_H[is_on_H]
    centre_N = torch.zeros_like(ray_MN[0]) if bias_H is None else bias_H.float()[is_on_H] / weight_H[is_on_H]
    # |length · ray - centre|² = N; of the two lengths the one that goes along the ray, not against it.
    square_M = ray_MN.square().sum(1).clamp(min=torch.finfo(torch.float32).tiny)
    along_M = ray_MN @ centre_N
    outside = centre_N.square().sum() - len(centre_N)
    length_M = (along_M + (along_M.square() - square_M * outside).clamp(min=0).sqrt()) / square_M
    return directions_MH.float() * length_M[:, None]
