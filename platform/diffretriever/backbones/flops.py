"""Counts a model's floating-point operations and measures a device's rate, for the model FLOPs utilisation.

Counts include the layers' matrices and the two products of attention, without padding, embeddings, norms, output head
and recomputed activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import nn
from torch.utils.benchmark import Timer

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.float8 import Float8Linear
from diffretriever.backbones.linear import BlockedLinear

_LINEAR = (nn.Linear, Float8Linear, BlockedLinear)
_SIZE_GPU, _SIZE_CPU = 8192, 768
"""Sizes of the matrices in the measurement; larger ones are not faster."""
_SECONDS = 0.2


class Matrices(NamedTuple):
    """The sizes of a backbone's matrices, adapters included."""

    frozen: int
    """Number of weights in frozen matrices."""
    trained: int
    """Number of weights in trained matrices, such as LoRA's."""
    layers: int
    width: int
    """Width of all attention heads of a layer together."""

    @classmethod
    def of(cls, backbone: Backbone) -> Self:
        """Return the sizes of a backbone."""
        linear = [module for module in backbone.model.base_model.modules() if isinstance(module, _LINEAR)]
        trained = sum(module.weight.numel() for module in linear if module.weight.requires_grad)
        config = backbone.model.config
        heads: int = config.num_attention_heads
        head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        total = sum(module.weight.numel() for module in linear)
        return cls(total - trained, trained, config.num_hidden_layers, heads * head_dim)

    def forward_flops(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Return the operations of a forward pass, 2 T (N + n) + 4 L D Σ s².

        T tokens in texts of s each, N frozen and n trained weights, L layers of width D.
        """
        lengths = np.asarray(lengths, np.float64)
        weights, squares = self.frozen + self.trained, (lengths**2).sum()
        return float(2 * weights * lengths.sum() + 4 * self.layers * self.width * squares)

    def training_flops(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Return the operations of a forward and a backward pass, T (4 N + 6 n) + 12 L D Σ s².

        The backward pass has two products for each forward one, but only one for a frozen weight.
        """
        saved = 2 * self.frozen * float(np.sum(lengths))
        return 3 * self.forward_flops(lengths) - saved


@cache
def reached_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of large dense products on a device, measured for 0.2 s once per process."""
    size = _SIZE_CPU if device.type == "cpu" else _SIZE_GPU
    # Random values, because GPUs multiply constant matrices faster.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator, dtype=dtype, device=device) for _ in range(2))
    names = {"mm": torch.mm, "left": left, "right": right, "out": torch.empty_like(left)}
    timer = Timer("mm(left, right, out=out)", globals=names, num_threads=torch.get_num_threads())
    # The minimum time, because other processes may use the device.
    return 2 * size**3 / min(timer.blocked_autorange(min_run_time=_SECONDS).times)
