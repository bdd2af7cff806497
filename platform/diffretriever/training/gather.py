"""Candidates from all workers, with exact gradients.

Every worker computes the loss of all queries over all candidates, in which only its own texts carry gradients. The sum
of these partial gradients is the whole one. Both ways of training average gradients over W workers, hence the loss
times W; backward needs no communication.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.training.trainable import TextVectors, join


class Workers(NamedTuple):
    """This process among those that train together."""

    rank: int
    total: int

    @classmethod
    def current(cls) -> Workers:
        """Return this process's place; alone where no process group is open."""
        if not dist.is_initialized():
            return cls(0, 1)
        return cls(dist.get_rank(), dist.get_world_size())


def gather(own: TextVectors, workers: Workers) -> TextVectors:
    """Return the texts of all workers, worker after worker; gradients flow to this one's own.

    Each worker brings as many texts; their vectors and content ids may differ in number.
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
    """Return the rows of all workers, worker after worker, without gradients; each brings a tensor of one shape."""
    return own if workers.total == 1 else torch.cat(_gathered(own, workers.total))


def broadcast_bytes(data: bytes | None, workers: Workers, device: torch.device) -> bytes:
    """Return the first worker's `data` on all of them; `device` is this worker's."""
    box = [data]
    if workers.total > 1:
        dist.broadcast_object_list(box, src=0, device=device)
    assert box[0] is not None, "the first worker has something to give"
    return box[0]


def _gathered(tensor: Tensor, count: int) -> list[Tensor]:
    sent = tensor.detach().contiguous()
    is_bool = sent.dtype == torch.bool
    sent = sent.byte() if is_bool else sent
    parts = [torch.empty_like(sent) for _ in range(count)]
    if sent.numel():
        dist.all_gather(parts, sent)
    return [part.bool() for part in parts] if is_bool else parts
