"""How gradients become a step, on one worker or on many: two engines with the same methods.

`ddp`: plain data parallelism. `deepspeed`: ZeRO-2, which shards gradients and the optimiser's state over the workers
(paper App. B.1). Both add up gradients, average them over workers, clip them and step; all workers call them alike.
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

# Both as in the authors' training.
CLIP_NORM, WEIGHT_DECAY = 1.0, 0.01
_STATE_FILE = "optimizer.pt"
_TAG = "deepspeed"
_VALUES_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""The variable that wins over `weights_only=False` in torch."""


def open_engine(module: nn.Module, parameters: dict[str, nn.Parameter], recipe: Recipe, workers: Workers) -> Engine:
    """Return the engine that the recipe's strategy names.

    Args:
        module: what is trained.
        parameters: those of the module that change, by name.
        recipe: the strategy.
        workers: this one among all.

    Raises:
        ValueError: The strategy is DeepSpeed, which is not installed.
    """
    if recipe.strategy == "ddp":
        return PlainEngine(parameters, workers)
    return DeepSpeedEngine(module, parameters, recipe)


class PlainEngine:
    """Every worker holds the whole optimiser; gradients are averaged once a step, as one tensor.

    No wrapper around the module: losses need not come from one call of its forward.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], workers: Workers) -> None:
        self._parameters, self._workers = parameters, workers
        self._optimizer = _adamw(parameters)
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


class DeepSpeedEngine:
    """ZeRO-2 over the trainable parameters of a module, which stays where and as precise as it is.

    A process group must be open, and LOCAL_RANK be set, as Ray Train and torchrun do.
    """

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter], recipe: Recipe) -> None:
        """Set DeepSpeed up.

        Raises:
            ValueError: it is not installed.
        """
        # An extra, and slow to import: nothing else needs it.
        try:
            import deepspeed  # type: ignore[import-untyped]
        except ImportError as error:
            raise ValueError("strategy: deepspeed needs `pip install 'diffretriever[train]'`, or take ddp") from error
        # On a CPU it would compile collectives of its own, for a minute, with a compiler: those of gloo will do.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self._engine: Any
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=module,
            model_parameters=list(parameters.values()),
            optimizer=_adamw(parameters),
            config=_config(recipe, sum(parameter.numel() for parameter in parameters.values())),
        )

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a scalar to the step's; they are communicated meanwhile."""
        self._engine.backward(loss)

    def step(self, learning_rate: float) -> float:
        """Average, clip, step: each worker its share of the parameters, which is then sent to all."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def save(self, folder: Path) -> None:
        """Write the parameters, by the first worker, and each worker's share of the optimiser."""
        (folder / _TAG).mkdir(exist_ok=True)
        self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False, exclude_frozen_parameters=True)

    def load(self, folder: Path) -> None:
        """Read what as many workers have written."""
        with values_only():
            path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=False)
        if path is None:
            raise ValueError(f"{folder}: DeepSpeed finds no checkpoint there: remove it, and begin anew")


@contextmanager
def values_only() -> Iterator[None]:
    """Let `torch.load` read tensors, plain values and DeepSpeed's own three classes, whatever it is asked for.

    DeepSpeed asks for any pickle, and a pickle can run anything: a checkpoint may have come from elsewhere.
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
        # Losses come divided already, and a step may have any number of backward passes.
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": CLIP_NORM,
        "zero_optimization": {
            "stage": 2,
            "contiguous_gradients": True,
            "overlap_comm": False,
            # While gradients are added up, a buffer of so many fp32 values is held, 2 GB by default.
            "reduce_bucket_size": trainable,
        },
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }


Engine: TypeAlias = PlainEngine | DeepSpeedEngine


def _adamw(parameters: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    """Return AdamW with torch's betas and epsilon; each step sets the learning rate."""
    return torch.optim.AdamW(parameters.values(), weight_decay=WEIGHT_DECAY)
