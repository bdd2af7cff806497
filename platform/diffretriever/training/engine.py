"""How gradients become a step, on one worker or on many: the interface, and plain data parallelism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from diffretriever.training.gather import Workers
from schemas.training import Recipe

_STATE_FILE = "optimizer.pt"


class Engine(ABC):
    """Adds up gradients, averages them over workers, clips them and steps; all workers call it alike."""

    @abstractmethod
    def backward(self, loss: Tensor, last: bool) -> None:  # noqa: FBT001 (the form that gradient caching calls)
        """Add the gradients of a scalar to the step's; `last` says that none will follow in this step."""

    @abstractmethod
    def step(self, learning_rate: float) -> float:
        """Change the parameters by what was added up; return the gradient's norm before clipping."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write parameters and optimiser into `folder`, which is there; workers may each write files of their own."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Take up what `save` wrote on as many workers."""


def adamw(parameters: dict[str, nn.Parameter], recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW over the adapter's matrices, with torch's betas and epsilon."""
    return torch.optim.AdamW(parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)


class PlainEngine(Engine):
    """Every worker holds the whole optimiser; gradients are averaged once a step, as one tensor.

    No wrapper around the module: losses need not come from one call of its forward (reference §5.7).
    """

    def __init__(self, parameters: dict[str, nn.Parameter], recipe: Recipe, workers: Workers) -> None:
        self._parameters, self._workers = parameters, workers
        self._clip_norm = recipe.clip_norm
        self._optimizer = adamw(parameters, recipe)
        if workers.total > 1:
            for parameter in parameters.values():
                dist.broadcast(parameter.data, src=0)

    def backward(self, loss: Tensor, last: bool) -> None:  # noqa: FBT001 (as in the interface)
        """Add the gradients of a scalar to the step's."""
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """Average, clip, step."""
        self._average()
        norm = float(clip_grad_norm_(self._parameters.values(), self._clip_norm))
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
        state = torch.load(folder / _STATE_FILE, map_location="cpu", weights_only=True)
        assert state["parameters"].keys() == self._parameters.keys(), "the checkpoint is of this adapter"
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
            parameter.grad = averaged.view_as(parameter).clone()
