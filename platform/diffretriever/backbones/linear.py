"""Variants of a backbone's linear layers: weights in oneDNN's blocked layout, and LoRA on slots only.

Legend: B texts, L padded length, T tokens of all texts, M slots among them, I inputs and O outputs of a linear map.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from diffretriever.backbones.cpu_tuning import computes_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class BlockedLinear(nn.Module):
    """A bfloat16 linear layer with weights in oneDNN's blocked layout."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        # Not a buffer: blocked tensors cannot be copied or saved.
        self.weight: Any = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), None)  # noqa: SLF001
        self.bias = plain.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., O] of inputs [..., I], both bfloat16."""
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        outputs: Tensor = product(inputs, self.weight, self.bias, "none", [], "")
        return outputs


def block_weights(model: PreTrainedModel) -> None:
    """Convert a model's bfloat16 weights to oneDNN's blocked layout in place, on CPUs that compute bfloat16.

    oneDNN otherwise reorders a matrix in every product; a single query takes two thirds of the time. Results are equal
    bit for bit. The layers no longer support gradients. An adapter's float32 matrices do not change.
    """
    is_bfloat16 = model.device.type == "cpu" and model.dtype == torch.bfloat16
    if not (is_bfloat16 and computes_bfloat16()):
        return
    modules = list(model.named_modules())
    # One at a time, so that not all weights are in memory twice.
    for name, module in modules:
        if type(module) is nn.Linear and module.weight.dtype == torch.bfloat16:
            model.set_submodule(name, BlockedLinear(module))


class SlotAdapter:
    """Applies an unmerged adapter to slot tokens only."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: slice | Tensor | None = None
        """Indices of the pass's slot tokens, set before each pass; None: no slots."""
        layer: Any
        for layer in model.modules():
            if hasattr(layer, "lora_B"):
                # Look-ups in every call would slow down queries.
                parts = (layer.lora_dropout, layer.lora_A, layer.lora_B, layer.scaling)
                layer.forward = partial(self._adapted, layer, *(part["default"] for part in parts))

    def set_slots(self, slots_BL: Tensor | None, device: torch.device) -> None:
        """Set the slots of the next pass (-1: other tokens). Consecutive slots become a slice."""
        self.rows = None
        if slots_BL is None:
            return
        rows_M = (slots_BL.flatten() >= 0).nonzero()[:, 0]
        if len(rows_M) and rows_M[-1] - rows_M[0] == len(rows_M) - 1:
            self.rows = slice(int(rows_M[0]), int(rows_M[-1]) + 1)
        else:
            self.rows = rows_M.to(device)

    def _adapted(
        self, layer: Any, dropout: nn.Module, down: nn.Linear, up: nn.Linear, scaling: float, inputs_BLI: Tensor
    ) -> Tensor:
        outputs_BLO: Tensor = layer.base_layer(inputs_BLI)
        if self.rows is None:
            return outputs_BLO
        outputs_TO = outputs_BLO.flatten(0, 1)
        slots_MI = inputs_BLI.flatten(0, 1)[self.rows].float()
        if layer.training:
            slots_MI = dropout(slots_MI)
        change_MO = linear(linear(slots_MI, down.weight), up.weight)
        # The sum is rounded once.
        outputs_TO[self.rows] = torch.add(outputs_TO[self.rows], change_MO, alpha=scaling).to(outputs_TO.dtype)
        return outputs_TO.view_as(outputs_BLO)
