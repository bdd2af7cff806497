"""8-bit layers: linear layers inside the backbone multiply e4m3 numbers, all else stays in bfloat16.

Scales map the largest value of each weight row, and of each input token, to the largest e4m3 number. On a GPU, e4m3 is
twice as fast as bfloat16 if matrix sizes are multiples of 16. On a CPU it is slow, and only measures rounding errors.

Legend: T tokens, I inputs and O outputs of a linear layer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import ScalingType, scaled_mm

from diffretriever.backbones.device import FLOAT8

if TYPE_CHECKING:
    from diffretriever.backbones.base import Backbone

E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(E4M3).max
# Avoids a division by zero for rows of zeros.
_LEAST_SCALE = 1e-12
_CAPABILITY = (8, 9)
"""Minimum compute capability of GPUs with e4m3 products."""


def check_float8(device: torch.device) -> None:
    """Raise ValueError for a GPU without e4m3 products."""
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY:
        raise ValueError(
            f"dtype '{FLOAT8}' needs a GPU of compute capability {'.'.join(map(str, _CAPABILITY))} or later, such as "
            f"L40S or H100; {torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}: use bfloat16"
        )


def use_float8(backbone: Backbone) -> None:
    """Replace the linear layers of a bfloat16 backbone by 8-bit ones, in place; merge adapters before.

    The layers no longer support gradients.
    """
    ends = tuple(f".{target}" for target in backbone.lora_targets)
    # One at a time, so that not all weights are in memory twice.
    for name in [name for name, _ in backbone.model.named_modules() if name.endswith(ends)]:
        backbone.model.set_submodule(name, Float8Linear(backbone.model.get_submodule(name)))
    backbone.precision = FLOAT8


class Float8Linear(nn.Module):
    """A linear layer with e4m3 weights, which rounds its inputs to e4m3."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight_OI, scale_O1 = to_e4m3(linear.weight.detach())
        self.weight = nn.Buffer(weight_OI)
        self.scale_1O = nn.Buffer(scale_O1.T.contiguous())
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., O] of inputs [..., I], both bfloat16."""
        values_TI, scale_T1 = to_e4m3(inputs.flatten(0, -2))
        by_row = ScalingType.RowWise
        outputs_TO = scaled_mm(
            values_TI,
            self.weight.T,
            scale_T1,
            by_row,
            self.scale_1O,
            by_row,
            output_dtype=inputs.dtype,
            # Less precise sums at full speed; the error is far below that of rounding to e4m3.
            use_fast_accum=True,
        )
        # Added separately, because not all kernels support a bias.
        if self.bias is not None:
            outputs_TO = outputs_TO + self.bias
        return outputs_TO.unflatten(0, inputs.shape[:-1])


def to_e4m3(values_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Round values / scale to e4m3 [T, I], and return the scales, float32 [T, 1].

    Products of a row with NaN or infinity are NaN.
    """
    largest_T1 = torch.linalg.vector_norm(values_TI, math.inf, dim=-1, keepdim=True, dtype=torch.float32)
    scale_T1 = (largest_T1 / _LARGEST).clamp(min=_LEAST_SCALE)
    return (values_TI / scale_T1).to(E4M3), scale_T1
