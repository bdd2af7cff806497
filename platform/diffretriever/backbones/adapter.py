"""An adapter put on a loaded backbone: LoRA added into the weights or beside them through PEFT, and slot layers.

Modules have the model's names or the family's original ones: the authors' adapters for LLaDA name modules as LLaDA's
code does, adapters trained with this library as transformers does.

Legend: R rank, I inputs and O outputs of the matrix that is adapted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from diffretriever.backbones.adapter_files import AdapterFiles
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.slot_layers import attach_slot_layers, read_slot_layers

AdapterHead: TypeAlias = Literal["include", "drop"]
"""Whether an adapter's part on the output head is taken."""


@dataclass(frozen=True)
class LowRank:
    """The change of one matrix: scale · B A."""

    a_RI: Tensor
    b_OR: Tensor
    alpha: float
    scale: float

    @property
    def rank(self) -> int:
        """R."""
        return self.a_RI.shape[0]


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
        backbone: without an adapter.
        adapter: its files.
        checkpoint_name: the model's name of a tensor → the checkpoint's.
        head: `drop` leaves out the adapter's part on the output head.
        merge: True adds scale · B A into each matrix, computed in float32 and rounded once. False keeps A and B as
            float32 parameters of PEFT's layers, for training; the other weights are then frozen.

    Raises:
        ValueError: The adapter does not fit the backbone, or all of it is on the dropped head.
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
        _insert(model, parts, adapter)
    backbone.weights_digest = _digest(backbone.weights_digest, parts, head)


def apply_slot_layers(backbone: Backbone, folder: Path) -> None:
    """Put the slot layers beside an adapter in `folder`, if any, on a backbone in place, and into its digest.

    Raises:
        ValueError: as `read_slot_layers`.
    """
    layers = read_slot_layers(folder, backbone.hidden_size, backbone.vocab_size)
    if layers is None:
        return
    attach_slot_layers(backbone.model, layers.requires_grad_(requires_grad=False))
    backbone.weights_digest = layers.digest(backbone.weights_digest)


def match_modules(adapter: AdapterFiles, model: Any, names: dict[str, str]) -> dict[str, LowRank]:
    """Return the adapter's changes by the model's names of the modules.

    Raises:
        ValueError: A tensor has no module, lacks its other half, has a wrong shape, comes twice or is not finite; or a
            targeted module has no tensors.
    """
    keys: dict[str, dict[str, str]] = {}
    for key in adapter.tensors:
        spelled, half = adapter.parse(key)
        if spelled not in names:
            raise ValueError(f"{adapter.file}: tensor '{key}' belongs to no linear layer of this backbone.")
        halves = keys.setdefault(names[spelled], {})
        if half in halves:
            raise ValueError(f"{adapter.file}: tensors '{halves[half]}' and '{key}' are for the same matrix.")
        halves[half] = key
    _check_complete(adapter, names, keys.keys() | outside_of_layers(model))
    return {own: _pair(adapter, halves, model.get_submodule(own)) for own, halves in keys.items()}


def module_names(model: Any, checkpoint_name: Callable[[str], str]) -> dict[str, str]:
    """Return the names of each linear layer in adapters → in the model.

    They are the model's, with or without the prefix of its layers, and those of the family's checkpoints.
    """
    names: dict[str, str] = {}
    for own, module in model.named_modules():
        if isinstance(module, nn.Linear):
            original = checkpoint_name(f"{own}.weight").removesuffix(".weight")
            names |= {own: own, original: own, own.removeprefix(f"{model.base_model_prefix}."): own}
    return names


def outside_of_layers(model: Any) -> frozenset[str]:
    """Return the names of the modules that only logits pass through: the output head and what leads to it."""
    inside = {id(module) for module in model.base_model.modules()}
    return frozenset(name for name, module in model.named_modules() if id(module) not in inside)


def _pair(adapter: AdapterFiles, keys: dict[str, str], module: nn.Linear) -> LowRank:
    for half, other in ("AB", "BA"):
        if half not in keys:
            raise ValueError(f"{adapter.file}: tensor '{keys[other]}' has no lora_{half} beside it.")
    spelled, _ = adapter.parse(keys["A"])
    rank = adapter.rank(spelled)
    for half, shape in (("A", (rank, module.in_features)), ("B", (module.out_features, rank))):
        tensor = adapter.tensors[keys[half]]
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{adapter.file}: tensor '{keys[half]}' has shape {list(tensor.shape)}; the backbone and the rank in "
                f"the adapter's config ask for {list(shape)}. Is it an adapter for this backbone?"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{adapter.file}: tensor '{keys[half]}' has values that are not finite.")
    a_RI, b_OR = (adapter.tensors[keys[half]] for half in "AB")
    return LowRank(a_RI, b_OR, adapter.alpha(spelled), adapter.scale(spelled))


def _check_complete(adapter: AdapterFiles, names: dict[str, str], adapted: set[str]) -> None:
    """Refuse an adapter for a smaller model of the same width. An output head may be left out."""
    targets = adapter.config.get("target_modules")
    if not isinstance(targets, list) or {"exclude_modules", "layers_to_transform"} & adapter.config.keys():
        return
    ends = tuple(f".{target}" for target in targets)
    for spelled, own in names.items():
        if own not in adapted and f".{spelled}".endswith(ends):
            raise ValueError(
                f"{adapter.file}: the adapter's config targets '{spelled}', but the file has no tensors for it. "
                "Is it an adapter for this backbone?"
            )


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


def _insert(model: Any, parts: Mapping[str, LowRank], adapter: AdapterFiles) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = adapter.config
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
