"""Linear maps of a backbone's layers in other forms: weights in oneDNN's blocked layout, and LoRA at slots alone.

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
    """A linear map, bfloat16, whose weights are in oneDNN's blocked layout."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        # No buffer: blocks cannot be copied or saved as other tensors.
        self.weight: Any = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), None)  # noqa: SLF001
        self.bias = plain.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., O] of inputs [..., I], both bfloat16."""
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        outputs: Tensor = product(inputs, self.weight, self.bias, "none", [], "")
        return outputs


def block_weights(model: PreTrainedModel) -> None:
    """Put a model's weights into oneDNN's blocked layout, in place: bfloat16 on a CPU that multiplies it.

    A plain matrix is reordered in every product; here it is done once, by the operators that torch.compile takes for
    it: a single query takes two thirds of the time. Results are the same bit for bit. The blocks replace the plain
    weights, so memory does not grow; gradients no longer reach the layers. Float32 matrices of an adapter stay.
    """
    is_bfloat16 = model.device.type == "cpu" and model.dtype == torch.bfloat16
    if not (is_bfloat16 and computes_bfloat16()):
        return
    modules = list(model.named_modules())
    # One after the other, so that memory never holds all weights twice.
    for name, module in modules:
        if type(module) is nn.Linear and module.weight.dtype == torch.bfloat16:
            model.set_submodule(name, BlockedLinear(module))


class SlotAdapter:
    """An adapter that is not merged and changes the states of slots alone: its products are of slots alone too."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: slice | Tensor | None = None
        """The tokens of the pass that are slots, set before each pass; None: there are none."""
        layer: Any
        for layer in model.modules():
            if hasattr(layer, "lora_B"):
                # Looked up once: a query needs them in every matrix.
                parts = (layer.lora_dropout, layer.lora_A, layer.lora_B, layer.scaling)
                layer.forward = partial(self._adapted, layer, *(part["default"] for part in parts))

    def set_slots(self, slots_BL: Tensor | None, device: torch.device) -> None:
        """Set the slots of the next pass; -1 for other tokens. Slots that are together become a slice."""
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
        """Return what PEFT's layer does at slots, and the layer under it everywhere else."""
        given_BLO: Tensor = layer.base_layer(inputs_BLI)
        if self.rows is None:
            return given_BLO
        given_TO = given_BLO.flatten(0, 1)
        read_MI = inputs_BLI.flatten(0, 1)[self.rows].float()
        if layer.training:
            read_MI = dropout(read_MI)
        change_MO = linear(linear(read_MI, down.weight), up.weight)
        # The sum is rounded once.
        given_TO[self.rows] = torch.add(given_TO[self.rows], change_MO, alpha=scaling).to(given_TO.dtype)
        return given_TO.view_as(given_BLO)
