"""Weights in blocks: the linear maps inside a backbone's layers, as oneDNN's products on a CPU read them.

A plain matrix is put into blocks in every product: of a single query that takes a third of its time. Here it is done
once, by the operators that torch.compile takes for it. Results are the same bit for bit. The blocks stand in the place
of the plain weights, so memory does not grow; gradients no longer reach the layers.

Legend: I inputs and O outputs of a linear map.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffretriever.backbones.device import computes_bfloat16

_OPERATORS = ("_reorder_linear_weight", "_linear_pointwise")


def block_weights(model: PreTrainedModel) -> None:
    """Put weights in blocks in place where that was measured to gain: bfloat16 on an x86 processor that multiplies it.

    Args:
        model: a backbone's without its head, with its adapter, merged or beside the weights, whose own matrices stay as
            they are.
    """
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not _has_operators():
        return
    plain = [name for name, module in model.named_modules() if _is_plain(module)]
    # One after the other, so that memory never holds all weights twice.
    for name in plain:
        model.set_submodule(name, BlockedLinear(model.get_submodule(name)))


def _has_operators() -> bool:
    has_all = all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
    return has_all and platform.machine() in ("x86_64", "AMD64") and computes_bfloat16()


def _is_plain(module: nn.Module) -> bool:
    # LoRA's are float32.
    return type(module) is nn.Linear and module.weight.dtype == torch.bfloat16


class BlockedLinear(nn.Module):
    """A linear map, bfloat16, whose weights are held in blocks."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # No buffer: blocks cannot be copied or saved as other tensors.
        self.blocks_OI: Any = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)  # noqa: SLF001
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., O] of inputs [..., I], both bfloat16."""
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        outputs: Tensor = product(inputs, self.blocks_OI, self.bias, "none", [], "")
        return outputs
