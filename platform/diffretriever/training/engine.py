"""How gradients become a step, on one worker or on many: plain data parallelism."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from diffretriever.files import understood
from diffretriever.training.gather import Workers

# Both as in the authors' training.
CLIP_NORM, WEIGHT_DECAY = 1.0, 0.01
_STATE_FILE = "optimizer.pt"


class Engine:
    """Adds up gradients, averages them over the workers as one tensor, clips them and steps; all workers call it alike.

    Each worker has the whole optimiser. The module has no wrapper: losses need not come from one call of its forward.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], workers: Workers) -> None:
        self._parameters, self._workers = parameters, workers
        self._optimizer = torch.optim.AdamW(parameters.values(), weight_decay=WEIGHT_DECAY)
        if workers.total > 1:
            for parameter in parameters.values():
                dist.broadcast(parameter.data, src=0)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a scalar to the step's."""
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """Average, clip, step."""
        self._average()
        norm = float(clip_grad_norm_(self._parameters.values(), CLIP_NORM))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def save(self, folder: Path) -> None:
        """Write one file, on the first worker only: all hold the same."""
        if self._workers.rank == 0:
            values = {name: parameter.detach() for name, parameter in self._parameters.items()}
            torch.save({"parameters": values, "optimizer": self._optimizer.state_dict()}, folder / _STATE_FILE)

    def load(self, folder: Path) -> None:
        """Read that file, on every worker."""
        with understood(folder / _STATE_FILE, "remove this checkpoint, and the training goes on from the one before"):
            state = torch.load(folder / _STATE_FILE, map_location="cpu", weights_only=True)
        if state["parameters"].keys() != self._parameters.keys():
            raise ValueError(f"{folder / _STATE_FILE}: the checkpoint of another adapter: remove it, and begin anew")
        with torch.no_grad():
            for name, value in state["parameters"].items():
                self._parameters[name].copy_(value)
        self._optimizer.load_state_dict(state["optimizer"])

    def _average(self) -> None:
        if self._workers.total == 1:
            return
        # A parameter without a gradient here may have one on another worker.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters.values()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self._workers.total
        sizes = [gradient.numel() for gradient in gradients]
        for parameter, averaged in zip(self._parameters.values(), flat.split(sizes), strict=True):
            parameter.grad = averaged.view_as(parameter)
