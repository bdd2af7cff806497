"""Floating-point operations that a backbone needs for texts, and how many of them a device does in a second.

Their ratio is the model FLOPs utilisation: the share of a device's time for which it would have to be busy if it did
nothing but the products that the texts need. What is computed beside those counts as waste: padding, and in training
what gradient checkpointing computes again.

Counted are the matrices of the layers and the two products of attention, every token with every token of its text,
whether or not the family's mask hides some. Left out are embeddings, norms, rotary positions, losses, and the output
head, which is read at few positions for few words.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import nn

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.float8 import Float8Linear
from diffretriever.backbones.linear import BlockedLinear

_FORWARD, _BACKWARD = 1, 2
"""Products of attention: forward, and for the gradients of both factors."""
_SIZE_GPU, _SIZE_CPU = 8192, 768
"""Rows and columns of the matrices that a device is measured with: larger ones are multiplied no faster."""
_PRODUCTS_GPU, _PRODUCTS_CPU = 8, 1
"""Products between two looks at the clock."""
_LEAST_REPEATS = 3
_SECONDS = 0.2


class Matrices(NamedTuple):
    """What the operations of a backbone follow from, adapters included."""

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
        weights = [weight for module in backbone.model.base_model.modules() for weight in _weights(module)]
        trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        config = backbone.model.config
        heads: int = config.num_attention_heads
        head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        every = sum(weight.numel() for weight in weights)
        return cls(every - trained, trained, config.num_hidden_layers, heads * head_dim)

    def forward_flops(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Return the operations of a forward pass over texts of so many tokens each, their prompts and slots included.

        2 T (N + n) + 4 L D Σ s²: T tokens in texts of s, N frozen and n trained weights, L layers of width D.
        """
        return self._flops(lengths, 2 * (self.frozen + self.trained), _FORWARD)

    def training_flops(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Return the operations of one pass forward and one back over texts of so many tokens each.

        T (4 N + 6 n) + 12 L D Σ s²: a frozen weight takes part in a product forward and one back, for it has no
        gradient of its own; a trained one in two back; and attention in two back for each forward.
        """
        return self._flops(lengths, 4 * self.frozen + 6 * self.trained, _FORWARD + _BACKWARD)

    def _flops(self, lengths: Sequence[int] | np.ndarray, per_token: int, passes: int) -> float:
        lengths = np.asarray(lengths, np.float64)
        return float(lengths.sum() * per_token + 4 * passes * self.layers * self.width * (lengths**2).sum())


def _weights(module: nn.Module) -> Iterator[torch.Tensor]:
    if isinstance(module, nn.Linear):
        yield module.weight
    elif isinstance(module, Float8Linear):
        yield module.weight_OI
    elif isinstance(module, BlockedLinear):
        yield module.blocks_OI


@cache
def reached_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations a second that large dense products reach on a device, measured for a fraction of a second.

    It is measured once in a process.
    """
    on_cpu = device.type == "cpu"
    size, products = (_SIZE_CPU, _PRODUCTS_CPU) if on_cpu else (_SIZE_GPU, _PRODUCTS_GPU)
    # Of equal numbers GPUs need less power, and multiply them faster than any real ones.
    chance = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=chance, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)
    _seconds(left, right, out, products)
    seconds: list[float] = []
    while len(seconds) < _LEAST_REPEATS or sum(seconds) < _SECONDS:
        seconds.append(_seconds(left, right, out, products))
    # The fastest: others may use the device in between.
    return products * 2 * size**3 / min(seconds)


def _seconds(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, products: int) -> float:
    _wait_for(left.device)
    start = time.perf_counter()
    for _ in range(products):
        torch.mm(left, right, out=out)
    _wait_for(left.device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
