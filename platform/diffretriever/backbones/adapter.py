"""LoRA on a loaded backbone: added into the weights, or beside them through PEFT (reference §5.5, §6.2).

Shapes: R rank, I inputs and O outputs of the matrix that is adapted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from diffretriever.backbones.adapter_files import AdapterFiles
from diffretriever.backbones.adapter_modules import LowRank, match_modules, module_names, outside_of_layers
from diffretriever.backbones.base import Backbone

AdapterHead: TypeAlias = Literal["include", "drop"]


def apply_adapter(
    backbone: Backbone,
    adapter: AdapterFiles,
    checkpoint_name: Callable[[str], str],
    *,
    head: AdapterHead,
    merge: bool,
) -> None:
    """Put an adapter on a backbone in place, and into its digest.

    Args:
        backbone: As loaded, without an adapter.
        adapter: What `AdapterFiles.open` read.
        checkpoint_name: The model's name of a tensor → the checkpoint's.
        head: `drop` leaves out the adapter's part on the output head.
        merge: True adds scale · B A into each matrix, computed in float32 and rounded once. False keeps A and B as
            float32 parameters of PEFT's layers, which can be trained further; the other weights are then frozen.

    Raises:
        ValueError: The adapter does not fit the backbone; see `match_modules`. Or nothing of it is left without its
            head.
    """
    model = backbone.model
    parts = match_modules(adapter, model, module_names(model, checkpoint_name))
    on_head = parts.keys() & outside_of_layers(model)
    if head == "drop":
        parts = {name: part for name, part in parts.items() if name not in on_head}
    elif on_head:
        _untie(model)
    if not parts:
        raise ValueError(f"{adapter.file}: all of it is on the output head, which adapter_head 'drop' leaves out.")
    if merge:
        _merge(model, parts)
    else:
        _insert(model, parts, adapter.config)
    backbone.weights_digest = _digest(backbone.weights_digest, parts, head)


def _untie(model: Any) -> None:
    """Give the output head weights of its own: a change of the head must not reach the input embeddings."""
    head = model.get_output_embeddings()
    if head.weight is model.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False


@torch.no_grad()
def _merge(model: Any, parts: Mapping[str, LowRank]) -> None:
    for name, part in parts.items():
        weight_OI = model.get_submodule(name).weight
        a_RI, b_OR = _float32(part.a_RI, weight_OI), _float32(part.b_OR, weight_OI)
        weight_OI.copy_((b_OR @ a_RI).mul_(part.scale).add_(weight_OI))


def _insert(model: Any, parts: Mapping[str, LowRank], config: Mapping[str, Any]) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    lora = LoraConfig(
        r=config["r"],
        lora_alpha=config["lora_alpha"],
        lora_dropout=config.get("lora_dropout", 0.0),
        use_rslora=config.get("use_rslora", False),
        target_modules=list(parts),
        rank_pattern={re.escape(name): part.rank for name, part in parts.items() if part.rank != config["r"]},
        alpha_pattern={re.escape(name): p.alpha for name, p in parts.items() if p.alpha != config["lora_alpha"]},
    )
    # On the meta device nothing is drawn at random that the adapter's values would then replace.
    inject_adapter_in_model(lora, model, low_cpu_mem_usage=True)
    for name, part in parts.items():
        layer = model.get_submodule(name)
        layer.lora_A["default"].weight = nn.Parameter(_float32(part.a_RI, layer.weight))
        layer.lora_B["default"].weight = nn.Parameter(_float32(part.b_OR, layer.weight))
        assert layer.scaling["default"] == part.scale, name
    model.eval()


def _float32(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device, torch.float32)


def _digest(weights: str, parts: Mapping[str, LowRank], head: AdapterHead) -> str:
    """Return a sha256 over the backbone's digest, `head`, and each change's place, scale and bytes."""
    digest = hashlib.sha256(f"{weights} {head}".encode())
    for name in sorted(parts):
        part = parts[name]
        for half, tensor in (("A", part.a_RI), ("B", part.b_OR)):
            digest.update(f"\n{name} {half} {part.scale} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
