"""Floating-point operations that texts need, and how many a device does in a second: the model FLOPs utilisation.

Counted are the matrices of the layers and the two products of attention, every token with every token of its text.
Left out are padding, embeddings, norms, rotary positions, losses, the output head and recomputed activations.
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
"""Rows and columns of the matrices that a device is measured with: larger ones are multiplied no faster."""
_SECONDS = 0.2


class Matrices(NamedTuple):
    """The sizes of a backbone's matrices, adapters included."""

    frozen: int
    """Weights of the layers' matrices that are not trained."""
    trained: int
    """Weights of those that are, such as LoRA's."""
    layers: int
    width: int
    """Of all attention heads of a layer together."""

    @classmethod
    def of(cls, backbone: Backbone) -> Self:
        """Count a backbone's."""
        linear = [module for module in backbone.model.base_model.modules() if isinstance(module, _LINEAR)]
        trained = sum(module.weight.numel() for module in linear if module.weight.requires_grad)
        config = backbone.model.config
        heads: int = config.num_attention_heads
        head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        every = sum(module.weight.numel() for module in linear)
        return cls(every - trained, trained, config.num_hidden_layers, heads * head_dim)

    def forward_flops(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Return the operations of a forward pass, 2 T (N + n) + 4 L D Σ s².

        T tokens in texts of s each, N frozen and n trained weights, L layers of width D.
        """
        lengths = np.asarray(lengths, np.float64)
        weights, squares = self.frozen + self.trained, (lengths**2).sum()
        return float(2 * weights * lengths.sum() + 4 * self.layers * self.width * squares)

    def training_flops(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Return the operations of a forward and a backward pass, T (4 N + 6 n) + 12 L D Σ s².

        A backward pass has two products for each forward one, but one for a frozen weight, which has no gradient.
        """
        saved = 2 * self.frozen * float(np.sum(lengths))
        return 3 * self.forward_flops(lengths) - saved


@cache
def reached_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations a second of large dense products on a device, measured once in a process for 0.2 s."""
    size = _SIZE_CPU if device.type == "cpu" else _SIZE_GPU
    # GPUs multiply equal numbers faster than any real ones.
    chance = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=chance, dtype=dtype, device=device) for _ in range(2))
    names = {"mm": torch.mm, "left": left, "right": right, "out": torch.empty_like(left)}
    timer = Timer("mm(left, right, out=out)", globals=names, num_threads=torch.get_num_threads())
    # The fastest: other processes may use the device in between.
    return 2 * size**3 / min(timer.blocked_autorange(min_run_time=_SECONDS).times)
