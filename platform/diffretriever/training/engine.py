"""Engines accumulate gradients, average them over workers, clip them, and step the optimiser.

`ddp` is plain data parallelism; `deepspeed` is ZeRO-2, which shards gradients and optimiser state (paper App. B.1). All
workers make the same calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.serialization import safe_globals

from diffretriever.core.files import understood
from diffretriever.schemas.training import Recipe
from diffretriever.training.gather import Workers

# As in the authors' training.
CLIP_NORM, WEIGHT_DECAY = 1.0, 0.01
_STATE_FILE = "optimizer.pt"
_TAG = "deepspeed"
_VALUES_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch's variable that overrides `weights_only=False`."""


def open_engine(module: nn.Module, parameters: dict[str, nn.Parameter], recipe: Recipe, workers: Workers) -> Engine:
    """Return the engine of the recipe's strategy for the trainable `parameters` of `module`.

    Raises:
        ValueError: The strategy is DeepSpeed, which is not installed.
    """
    if recipe.strategy == "ddp":
        return PlainEngine(parameters, workers)
    return DeepSpeedEngine(module, parameters, recipe)


class PlainEngine:
    """Data parallelism without a wrapper around the module, so a loss may use several forward passes.

    Every worker has the whole optimiser state. Gradients are averaged once per step, as one tensor.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], workers: Workers) -> None:
        self._parameters, self._workers = parameters, workers
        self._optimizer = _adamw(parameters)
        if workers.total > 1:
            for parameter in parameters.values():
                dist.broadcast(parameter.data, src=0)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of a scalar loss."""
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """Average and clip gradients, step, and return the norm before clipping."""
        self._average()
        norm = float(clip_grad_norm_(self._parameters.values(), CLIP_NORM))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def save(self, folder: Path) -> None:
        """Write parameters and optimiser state, on the first worker only."""
        if self._workers.rank == 0:
            values = {name: parameter.detach() for name, parameter in self._parameters.items()}
            torch.save({"parameters": values, "optimizer": self._optimizer.state_dict()}, folder / _STATE_FILE)

    def load(self, folder: Path) -> None:
        """Load the file of `save`, on every worker."""
        with understood(folder / _STATE_FILE, "remove this checkpoint to resume from the previous one"):
            state = torch.load(folder / _STATE_FILE, map_location="cpu", weights_only=True)
        if state["parameters"].keys() != self._parameters.keys():
            raise ValueError(f"{folder / _STATE_FILE}: the checkpoint is of another adapter: remove it and start again")
        with torch.no_grad():
            for name, value in state["parameters"].items():
                self._parameters[name].copy_(value)
        self._optimizer.load_state_dict(state["optimizer"])

    def _average(self) -> None:
        if self._workers.total == 1:
            return
        # Another worker may have a gradient for a parameter without one here.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters.values()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self._workers.total
        sizes = [gradient.numel() for gradient in gradients]
        for parameter, averaged in zip(self._parameters.values(), flat.split(sizes), strict=True):
            parameter.grad = averaged.view_as(parameter)


class DeepSpeedEngine:
    """ZeRO-2 over the trainable parameters of a module; device and precision of the module do not change.

    It needs a process group and LOCAL_RANK, which Ray Train and torchrun set up.
    """

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter], recipe: Recipe) -> None:
        """Initialise DeepSpeed.

        Raises:
            ValueError: DeepSpeed is not installed.
        """
        # Imported here: it is an optional extra, and slow to import.
        try:
            import deepspeed  # type: ignore[import-untyped]
        except ImportError as error:
            raise ValueError("strategy deepspeed: run `pip install 'diffretriever[train]'`, or use ddp") from error
        # Otherwise DeepSpeed compiles its own CPU collectives for a minute; gloo's suffice.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self._engine: Any
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=module,
            model_parameters=list(parameters.values()),
            optimizer=_adamw(parameters),
            config=_config(recipe, sum(parameter.numel() for parameter in parameters.values())),
        )

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of a scalar loss, and communicate them."""
        self._engine.backward(loss)

    def step(self, learning_rate: float) -> float:
        """Average and clip gradients, step, and return the norm before clipping."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def save(self, folder: Path) -> None:
        """Write the parameters, on the first worker, and each worker's shard of the optimiser state."""
        (folder / _TAG).mkdir(exist_ok=True)
        self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False, exclude_frozen_parameters=True)

    def load(self, folder: Path) -> None:
        """Load a checkpoint that the same number of workers saved."""
        with values_only():
            path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=False)
        if path is None:
            raise ValueError(f"{folder}: DeepSpeed finds no checkpoint there: remove it and start again")


@contextmanager
def values_only() -> Iterator[None]:
    """Restrict `torch.load` to tensors, plain values and three DeepSpeed classes.

    DeepSpeed allows any pickle, and the pickle of a foreign checkpoint could run code.
    """
    from deepspeed.runtime.fp16.loss_scaler import LossScaler  # type: ignore[import-untyped]
    from deepspeed.runtime.zero.config import ZeroStageEnum  # type: ignore[import-untyped]
    from deepspeed.utils.tensor_fragment import fragment_address  # type: ignore[import-untyped]

    before = os.environ.get(_VALUES_ONLY)
    os.environ[_VALUES_ONLY] = "1"
    try:
        with safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        if before is None:
            del os.environ[_VALUES_ONLY]
        else:
            os.environ[_VALUES_ONLY] = before


def _config(recipe: Recipe, trainable: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": recipe.queries_per_device,
        # Losses are already divided, and a step may have any number of backward passes.
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": CLIP_NORM,
        "zero_optimization": {
            "stage": 2,
            "contiguous_gradients": True,
            "overlap_comm": False,
            # Size of the fp32 buffer for gradients; DeepSpeed's default takes 2 GB.
            "reduce_bucket_size": trainable,
        },
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }


Engine: TypeAlias = PlainEngine | DeepSpeedEngine


def _adamw(parameters: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    # Each step sets the learning rate.
    return torch.optim.AdamW(parameters.values(), weight_decay=WEIGHT_DECAY)
