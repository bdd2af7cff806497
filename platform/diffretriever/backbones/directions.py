"""Directions of final states, made states again: as long as the backbone's final norm makes a state in that direction.

A norm leaves its states on an ellipsoid: state = weight · z + bias with |z|² = H, for RMSNorm and LayerNorm alike. So
the length that a stored unit vector has lost follows from the weights of the norm, up to the rounding of the vector and
the norm's epsilon. The mean of several states lies within the ellipsoid, and is made longer than it was.

Legend: M directions, H hidden size, N dimensions that the norm does not switch off.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SWITCHED_OFF = 1e-3
"""Relative to the norm's largest weight. What z is in a dimension with less, no state tells: it counts there as it does
in the others, on average. MiniLM has 3 such dimensions of 384."""


def as_states(directions_MH: Tensor, weight_H: Tensor, bias_H: Tensor | None) -> Tensor:
    """Return float32 [M, H]: each direction with the length that a state has there.

    Args:
        directions_MH: floating, of any length; 0 stays 0.
        weight_H: of the norm.
        bias_H: of the norm; None for one without.
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
