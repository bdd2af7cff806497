"""Layers in 8 bits: the linear maps inside a backbone's layers multiply numbers of four significant bits (e4m3).

A weight matrix is scaled row by row, once; what it is multiplied with token by token, in every pass. Each scale puts
the largest value of its row at the largest that e4m3 holds. Embeddings, norms, attention and the output head stay in
bfloat16.

A GPU multiplies e4m3 twice as fast as bfloat16, where sides of matrices are multiples of 16. Torch's product on CPUs is
slow; it measures the cost of the rounding.

Legend: T tokens, I inputs and O outputs of a linear map.
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
# A row of zeros has a scale too.
_LEAST_SCALE = 1e-12
_CAPABILITY = (8, 9)
"""Compute capability from which GPUs multiply e4m3."""


def check_float8(device: torch.device) -> None:
    """Raise `ValueError` for a GPU that does not multiply e4m3."""
    if device.type != "cuda":
        return
    found = torch.cuda.get_device_capability(device)
    if found < _CAPABILITY:
        raise ValueError(
            f"dtype '{FLOAT8}' needs a GPU of compute capability {'.'.join(map(str, _CAPABILITY))} or later, such as "
            f"L40S or H100; {torch.cuda.get_device_name(device)} has {'.'.join(map(str, found))}. Use bfloat16."
        )


def use_float8(backbone: Backbone) -> None:
    """Put e4m3 in the place of every linear map inside a backbone's layers, in place.

    The backbone is in bfloat16, its adapter merged. Gradients no longer reach its layers.
    """
    ends = tuple(f".{target}" for target in backbone.lora_targets)
    # One after the other, so that a GPU never holds all weights twice.
    for name in [name for name, _ in backbone.model.named_modules() if name.endswith(ends)]:
        backbone.model.set_submodule(name, Float8Linear(backbone.model.get_submodule(name)))
    backbone.precision = FLOAT8


class Float8Linear(nn.Module):
    """A linear map whose weights are held in e4m3, and which rounds what it is given to e4m3."""

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
            # Sums as the GPU keeps them at full speed: what they lose is far below what the values have lost.
            use_fast_accum=True,
        )
        # Not by the product itself: not every kernel that it may take has room for it.
        if self.bias is not None:
            outputs_TO = outputs_TO + self.bias
        return outputs_TO.unflatten(0, inputs.shape[:-1])


def to_e4m3(values_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Return values as e4m3 [T, I], rounded to the nearest, and the scales float32 [T, 1] by which they are too small.

    Of a row with NaN or infinity every product is NaN.
    """
    largest_T1 = torch.linalg.vector_norm(values_TI, math.inf, dim=-1, keepdim=True, dtype=torch.float32)
    scale_T1 = (largest_T1 / _LARGEST).clamp(min=_LEAST_SCALE)
    return (values_TI / scale_T1).to(E4M3), scale_T1
