"""Candidates from all workers, with exact gradients.

Every worker computes the loss of all queries over all candidates, in which only its own texts carry gradients. The sum
of these partial gradients is the whole one. Engines average gradients over W workers, hence the loss times W; backward
needs no communication.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.training.trainable import TextVectors, join


class Workers(NamedTuple):
    """The rank of this process among those that train together."""

    rank: int
    total: int


def gather(own: TextVectors, workers: Workers) -> TextVectors:
    """Return the texts of all workers, by rank; gradients flow to this worker's own.

    Each worker has the same number of texts; the numbers of their vectors, content ids and tokens may differ.
    """
    if workers.total == 1:
        return own
    widths = torch.tensor(own.widths, device=own.ids_BT.device)
    dist.all_reduce(widths, dist.ReduceOp.MAX)
    own = own.padded(*widths.tolist())
    columns = [_gathered(tensor, workers.total) for tensor in own]
    parts = [TextVectors(*tensors) for tensors in zip(*columns, strict=True)]
    parts[workers.rank] = own
    return join(parts)


def gather_rows(own: Tensor, workers: Workers) -> Tensor:
    """Return the rows of all workers, by rank, without gradients; each worker has a tensor of one shape."""
    return own if workers.total == 1 else torch.cat(_gathered(own, workers.total))


def _gathered(tensor: Tensor, count: int) -> list[Tensor]:
    sent = tensor.detach().contiguous()
    is_bool = sent.dtype == torch.bool
    sent = sent.byte() if is_bool else sent
    parts = [torch.empty_like(sent) for _ in range(count)]
    if sent.numel():
        dist.all_gather(parts, sent)
    return [part.bool() for part in parts] if is_bool else parts
