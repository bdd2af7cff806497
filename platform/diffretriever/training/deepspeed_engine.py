"""DeepSpeed ZeRO-2: gradients and the optimiser's state are shared out among the workers (reference §5.4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-untyped]
from deepspeed.runtime.fp16.loss_scaler import LossScaler  # type: ignore[import-untyped]
from deepspeed.runtime.zero.config import ZeroStageEnum  # type: ignore[import-untyped]
from deepspeed.utils.tensor_fragment import fragment_address  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.serialization import safe_globals

from diffretriever.training.engine import Engine, adamw
from schemas.training import Recipe

_TAG = "deepspeed"
_VALUES_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""The variable that wins over `weights_only=False` in torch."""


class DeepSpeedEngine(Engine):
    """ZeRO-2 over the trainable parameters of a module, which stays where and as precise as it is.

    A process group must be open, and LOCAL_RANK be set, as Ray Train and torchrun do.
    """

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter], recipe: Recipe) -> None:
        # On a CPU it would compile collectives of its own, for a minute, with a compiler: those of gloo will do.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self._engine: Any
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=module,
            model_parameters=list(parameters.values()),
            optimizer=adamw(parameters, recipe),
            config=_config(recipe),
        )

    def backward(self, loss: Tensor, last: bool) -> None:  # noqa: FBT001 (as in the interface)
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
        assert path is not None, f"DeepSpeed finds nothing in {folder}"


@contextmanager
def values_only() -> Iterator[None]:
    """Let `torch.load` read tensors, plain values and DeepSpeed's own three classes, whatever it is asked for.

    DeepSpeed asks for any pickle, and a pickle can run anything: a checkpoint may have come from elsewhere.
    """
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


def _config(recipe: Recipe) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": recipe.queries_per_device,
        # Losses come divided already, and a step may have any number of backward passes.
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": recipe.clip_norm,
        "zero_optimization": {"stage": 2, "contiguous_gradients": True, "overlap_comm": False},
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }
