"""Logits of chosen tokens only: in a vocabulary of 150,000 all of them cost more than the slots do.

Shapes: B batch, P positions read in a row, H hidden size, V vocabulary, T chosen tokens.
"""

from __future__ import annotations

from torch import Tensor, nn


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
