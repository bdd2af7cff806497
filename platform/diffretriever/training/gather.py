"""Gathers candidates of all workers, with exact gradients and without communication in the backward pass.

Every worker computes the loss of all queries over all candidates, with gradients of its own texts only. The sum of
these gradients is exact. Engines average over W workers, so the loss is multiplied by W.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.training.trainable import TextVectors, join


class Workers(NamedTuple):
    """The rank of this process and the number of training processes."""

    rank: int
    total: int


def gather(local: TextVectors, workers: Workers) -> TextVectors:
    """Return the texts of all workers, ordered by rank; only this worker's texts have gradients.

    Each worker must have the same number of texts; the numbers of vectors, content ids and tokens may differ.
    """
    if workers.total == 1:
        return local
    widths = torch.tensor(local.widths, device=local.ids_BT.device)
    dist.all_reduce(widths, dist.ReduceOp.MAX)
    local = local.padded(*widths.tolist())
    columns = [_gathered(tensor, workers.total) for tensor in local]
    parts = [TextVectors(*tensors) for tensors in zip(*columns, strict=True)]
    parts[workers.rank] = local
    return join(parts)


def gather_rows(local: Tensor, workers: Workers) -> Tensor:
    """Return the rows of all workers, ordered by rank, without gradients; shapes must be equal."""
    return local if workers.total == 1 else torch.cat(_gathered(local, workers.total))


def _gathered(tensor: Tensor, count: int) -> list[Tensor]:
    sent = tensor.detach().contiguous()
    is_bool = sent.dtype == torch.bool
    sent = sent.byte() if is_bool else sent
    parts = [torch.empty_like(sent) for _ in range(count)]
    if sent.numel():
        dist.all_gather(parts, sent)
    return [part.bool() for part in parts] if is_bool else parts
