"""Loads LoRA adapters in PEFT's format and merges them into a backbone, or attaches them through PEFT.

Adapters may use transformers' module names (as this library does) or the checkpoint's (as the authors' do for LLaDA).

Legend: R rank, I inputs and O outputs of the adapted matrix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import (
    ADAPTER_CONFIG,
    Checkpoint,
    ConfigFields,
    read_json,
    read_tensors,
    tensors_digest,
)
from diffretriever.backbones.slot_layers import attach_slot_layers, read_slot_layers

WEIGHT_FILE = "adapter_model.safetensors"

AdapterHead: TypeAlias = Literal["include", "drop"]
"""Whether to use an adapter's part on the output head."""

FIELDS = ConfigFields(
    required=frozenset({"lora_alpha", "peft_type", "r"}),
    optional=frozenset(
        {
            "exclude_modules",
            "layers_to_transform",
            "lora_dropout",
            "target_modules",
            "use_rslora",
        }
    ),
    fixed={
        "peft_type": ("LORA",),
        "alpha_pattern": ({},),
        "alora_invocation_tokens": (None,),
        "bias": ("none",),
        "ensure_weight_tying": (False,),
        "fan_in_fan_out": (False,),
        # Other initialisations change the base weights.
        "init_lora_weights": (True, False, "gaussian"),
        "layer_replication": (None,),
        "lora_bias": (False,),
        "modules_to_save": (None,),
        "rank_pattern": ({},),
        "target_parameters": (None,),
        "trainable_token_indices": (None,),
        "use_dora": (False,),
        "use_qalora": (False,),
    },
    ignored=frozenset(
        {
            "auto_mapping",
            "base_model_name_or_path",
            "inference_mode",
            "layers_pattern",
            "megatron_config",
            "megatron_core",
            "peft_version",
            "qalora_group_size",
            "revision",
            "task_type",
        }
    ),
)
"""The known fields of adapter_config.json. Null, false and empty fields count as missing."""

_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter's config without empty fields, and its tensors by their names in the file."""

    file: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def open(cls, folder: Path) -> AdapterFiles:
        """Read an adapter. Raises ValueError for a damaged file, or an unknown, missing or unsupported field."""
        file = folder / ADAPTER_CONFIG
        if not file.is_file():
            raise ValueError(f"{folder} is not an adapter: it has no {ADAPTER_CONFIG}. Is it a backbone?")
        config = {name: value for name, value in read_json(file).items() if value}
        FIELDS.check(config, file)
        return cls(folder / WEIGHT_FILE, config, read_tensors(folder / WEIGHT_FILE))

    def parse(self, key: str) -> tuple[str, str]:
        """Split a tensor's name into its module and `A` [R, I] or `B` [O, R]."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(
                f"{self.file}: tensor '{key}' is not part of a LoRA adapter on a linear layer: only "
                "'MODULE.lora_A.weight' and 'MODULE.lora_B.weight' are read."
            )
        return match["module"], match["half"]


@dataclass(frozen=True)
class LowRank:
    """The change of one matrix: scale · B A."""

    a_RI: Tensor
    b_OR: Tensor
    scale: float


def apply_adapter(
    backbone: Backbone,
    adapter: AdapterFiles,
    checkpoint: Checkpoint,
    *,
    head: AdapterHead,
    merge: bool,
) -> None:
    """Apply an adapter and its slot layers to a backbone in place, and update the backbone's digest.

    `head` "drop" ignores the adapter's part on the output head. `merge` adds scale · B A to each matrix, computed in
    float32 and rounded once. Otherwise PEFT's layers have A and B as float32 parameters, and other weights are frozen.

    Raises:
        ValueError: The adapter or a slot layer does not fit the backbone, or only changes the dropped head.
    """
    model = backbone.model
    parts = match_modules(adapter, model, module_names(backbone, checkpoint))
    on_head = parts.keys() & outside_of_layers(model)
    if head == "drop":
        parts = {name: part for name, part in parts.items() if name not in on_head}
    elif on_head:
        _untie(model)
    if not parts:
        raise ValueError(f"{adapter.file}: adapts only the output head, which adapter_head 'drop' ignores")
    if merge:
        _merge(model, parts)
    else:
        _insert(model, parts, adapter.config)
    halves: dict[str, Tensor] = {}
    for name, part in parts.items():
        halves |= {f"{name} A {part.scale}": part.a_RI, f"{name} B {part.scale}": part.b_OR}
    backbone.weights_digest = tensors_digest(f"{backbone.weights_digest} {head}", halves)
    layers = read_slot_layers(adapter.file.parent, backbone.hidden_size, backbone.vocab_size)
    if layers is not None:
        attach_slot_layers(model, layers.requires_grad_(requires_grad=False))
        backbone.weights_digest = tensors_digest(backbone.weights_digest, layers.tensors())


def match_modules(adapter: AdapterFiles, model: Any, names: dict[str, str]) -> dict[str, LowRank]:
    """Return the adapter's changes by module name. Raises ValueError if it does not fit the model."""
    keys: dict[str, dict[str, str]] = {}
    for key in adapter.tensors:
        spelled, half = adapter.parse(key)
        if spelled not in names:
            raise ValueError(f"{adapter.file}: tensor '{key}' does not belong to a linear layer of this backbone")
        keys.setdefault(names[spelled], {})[half] = key
    _check_complete(adapter, names, keys.keys() | outside_of_layers(model))
    return {name: _pair(adapter, halves, model.get_submodule(name)) for name, halves in keys.items()}


def module_names(backbone: Backbone, checkpoint: Checkpoint) -> dict[str, str]:
    """Map the names that adapters may use for linear layers to the model's names.

    These are the model's, with or without the base model's prefix, and the checkpoint's.
    """
    model = backbone.model
    linear = [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    names: dict[str, str] = {}
    for weight, original in backbone.checkpoint_names(linear, checkpoint).items():
        name = weight.removesuffix(".weight")
        bare = name.removeprefix(f"{model.base_model_prefix}.")
        names |= {name: name, original.removesuffix(".weight"): name, bare: name}
    return names


def outside_of_layers(model: Any) -> frozenset[str]:
    """Return the names of the modules outside of the base model: the output head and its own layers."""
    inside = {id(module) for module in model.base_model.modules()}
    return frozenset(name for name, module in model.named_modules() if id(module) not in inside)


def _pair(adapter: AdapterFiles, keys: dict[str, str], module: nn.Linear) -> LowRank:
    if len(keys) == 1:
        (key,) = keys.values()
        raise ValueError(f"{adapter.file}: tensor '{key}' lacks its counterpart (lora_A or lora_B): fetch it again")
    rank = int(adapter.config["r"])
    a_RI, b_OR = (adapter.tensors[keys[half]] for half in "AB")
    for key, tensor, shape in (
        (keys["A"], a_RI, (rank, module.in_features)),
        (keys["B"], b_OR, (module.out_features, rank)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{adapter.file}: tensor '{key}' has shape {list(tensor.shape)}, but backbone and rank require "
                f"{list(shape)}: use an adapter for this backbone"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{adapter.file}: tensor '{key}' has values that are not finite.")
    scale = adapter.config["lora_alpha"] / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)
    return LowRank(a_RI, b_OR, scale)


def _check_complete(adapter: AdapterFiles, names: dict[str, str], adapted: set[str]) -> None:
    # Rejects adapters of a smaller model of the same width. The output head may be missing.
    targets = adapter.config.get("target_modules")
    if not isinstance(targets, list) or {"exclude_modules", "layers_to_transform"} & adapter.config.keys():
        return
    ends = tuple(f".{target}" for target in targets)
    # Targets are names in the model that was trained: LLaDA's own code has no `o_proj`, which is Llama's name.
    stems = {_stem(adapter.parse(key)[0]) for key in adapter.tensors}
    for spelled, name in names.items():
        if name not in adapted and f".{spelled}".endswith(ends) and _stem(spelled) in stems:
            raise ValueError(
                f"{adapter.file}: the adapter's config targets '{spelled}', but the file has no tensors for it: use an "
                "adapter for this backbone"
            )


def _stem(name: str) -> str:
    return re.split(r"\d", name, maxsplit=1)[0]


def _untie(model: Any) -> None:
    # Copies the head's weights, so that merging does not change the input embeddings.
    head = model.get_output_embeddings()
    if head.weight is model.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False


@torch.no_grad()
def _merge(model: Any, parts: Mapping[str, LowRank]) -> None:
    for name, part in parts.items():
        weight_OI = model.get_submodule(name).weight
        a_RI, b_OR = (half.to(weight_OI.device, torch.float32) for half in (part.a_RI, part.b_OR))
        weight_OI.copy_((b_OR @ a_RI).mul_(part.scale).add_(weight_OI))


def _insert(model: Any, parts: Mapping[str, LowRank], config: Mapping[str, Any]) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    lora = LoraConfig(
        r=config["r"],
        lora_alpha=config["lora_alpha"],
        lora_dropout=config.get("lora_dropout", 0.0),
        use_rslora=config.get("use_rslora", False),
        target_modules=list(parts),
    )
    # On the meta device, to skip the random initialisation.
    inject_adapter_in_model(lora, model, low_cpu_mem_usage=True)
    for name, part in parts.items():
        layer = model.get_submodule(name)
        layer.lora_A["default"].weight = nn.Parameter(part.a_RI.to(layer.weight.device, torch.float32))
        layer.lora_B["default"].weight = nn.Parameter(part.b_OR.to(layer.weight.device, torch.float32))
    model.eval()
