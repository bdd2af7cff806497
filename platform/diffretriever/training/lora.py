"""LoRA on a backbone for training, and slot layers beside it: which tensors, and a start that the seed determines.

The same functional set on every family: the attention's four projections and the feed-forward ones (paper §4.1), never
the output head unless asked for (reference §8 D4).

Legend: B texts, L length, T tokens of all texts, I inputs and O outputs of a matrix, R rank.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import linear

from diffretriever.backbones import Backbone
from diffretriever.backbones.base import compute_adapted_by
from diffretriever.backbones.slot_layers import MODULE, SlotLayers, attach_slot_layers
from diffretriever.schemas.retriever import Readout
from diffretriever.schemas.training import Recipe
from diffretriever.training.data.seeds import seed_torch


def attach_lora(
    backbone: Backbone, recipe: Recipe, readout: Readout = "states", word_weights_V: torch.Tensor | None = None
) -> LoraConfig:
    """Put a new adapter on a backbone in place, freeze everything else, and return its config.

    A and B are float32 whatever the weights are; under weights of fewer bits they are rounded in each pass, as by the
    authors' DeepSpeed configuration (reference §5.4). B, the token head and the readout's R start as zero, so nothing
    changes yet; slot embeddings start as random as the backbone's input embeddings are, for what starts alike stays
    alike for long.

    Args:
        backbone: without an adapter.
        recipe: of the training.
        readout: of the retriever.
        word_weights_V: float32 on the CPU, what impacts are multiplied with, if anything.

    Raises:
        ValueError: `adapter_head: include` on a backbone whose head is not a matrix of its own.
    """
    config = lora_config(backbone, recipe)
    # BERT has dropout of its own, the decoders have none: the recipe's is the only one on all of them.
    for module in backbone.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    seed_torch("lora", recipe.seed)
    inject_adapter_in_model(config, backbone.model)
    assert sum(p.numel() for p in trainable_parameters(backbone).values()) == expected_parameters(backbone, config)
    layers = _new_slot_layers(backbone, recipe, readout, word_weights_V)
    if layers.tensors():
        attach_slot_layers(backbone.model, layers)
    for parameter in trainable_parameters(backbone).values():
        parameter.data = parameter.data.float()
    if backbone.dtype != torch.float32:
        compute_adapted_by(_adapted, backbone.model)
    if recipe.gradient_checkpointing:
        backbone.model.activation_checkpointing_enable({"use_reentrant": False})
        # Needed by the older, reentrant kind only.
        backbone.model.disable_input_require_grads()
    backbone.model.eval()
    return config


def _adapted(
    layer: Any, dropout: nn.Module, down: nn.Linear, up: nn.Linear, scaling: float, inputs_BLI: Tensor
) -> Tensor:
    """Return what PEFT's layer does, [B, L, O], by products of the precision of its inputs.

    PEFT's are of float32, to which it takes all inputs and outputs of a matrix: on a GPU that moves more bytes than the
    layer's own products do.
    """
    dtype = inputs_BLI.dtype
    given_BLO: Tensor = layer.base_layer(inputs_BLI)
    low_TR = scaling * linear(dropout(inputs_BLI), down.weight.to(dtype)).flatten(0, -2)
    # A view, never a copy: what is added to it is added to what is returned.
    given_BLO.view(-1, given_BLO.shape[-1]).addmm_(low_TR, up.weight.to(dtype).T)
    return given_BLO


def _new_slot_layers(
    backbone: Backbone, recipe: Recipe, readout: Readout, word_weights_V: torch.Tensor | None
) -> SlotLayers:
    embeddings_SH = token_head_HH = residual_HH = attention_HH = None
    if recipe.slot_embeddings:
        spread = float(backbone.model.get_input_embeddings().weight.float().std())
        embeddings_SH = spread * torch.randn(recipe.slot_embeddings, backbone.hidden_size)
    if recipe.token_head:
        token_head_HH = torch.zeros(backbone.hidden_size, backbone.hidden_size)
    if readout == "residual":
        residual_HH = torch.zeros(backbone.hidden_size, backbone.hidden_size)
    # Slots look at what is like them from the start: with even attention all of them are the mean, and stay it.
    if readout == "pooling":
        residual_HH = torch.eye(backbone.hidden_size)
        attention_HH = torch.eye(backbone.hidden_size)
    return SlotLayers(embeddings_SH, token_head_HH, residual_HH, attention_HH, word_weights_V)


def lora_config(backbone: Backbone, recipe: Recipe) -> LoraConfig:
    """Return PEFT's description of the adapter that `recipe` asks for."""
    targets = list(backbone.lora_targets)
    if recipe.adapter_head == "include":
        targets.append(_head_name(backbone))
    return LoraConfig(
        r=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=recipe.lora_dropout,
        target_modules=targets,
        bias="none",
    )


def target_modules(backbone: Backbone, config: LoraConfig) -> dict[str, nn.Linear]:
    """Return the matrices that the adapter changes, by the model's names; before or after it was attached."""
    ends = tuple(f".{target}" for target in config.target_modules)
    found: dict[str, nn.Linear] = {}
    for name, module in backbone.model.named_modules():
        if f".{name}".endswith(ends):
            linear = module.base_layer if hasattr(module, "base_layer") else module
            assert isinstance(linear, nn.Linear), name
            found[name] = linear
    return found


def expected_parameters(backbone: Backbone, config: LoraConfig) -> int:
    """Return r · Σ (inputs + outputs) over the matrices that the adapter changes."""
    matrices = target_modules(backbone, config).values()
    return config.r * sum(matrix.in_features + matrix.out_features for matrix in matrices)


def trainable_parameters(backbone: Backbone) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by the model's names, in its order."""
    return {name: parameter for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}


def adapter_tensors(backbone: Backbone) -> dict[str, torch.Tensor]:
    """Return LoRA's tensors, on the CPU, under PEFT's names in files; not the slot layers'."""
    return {
        f"base_model.model.{name.replace('.default.', '.')}": parameter.detach().cpu().contiguous()
        for name, parameter in trainable_parameters(backbone).items()
        if not name.startswith(f"{MODULE}.")
    }


def _head_name(backbone: Backbone) -> str:
    head: Any = backbone.model.get_output_embeddings()
    if head is None or head.weight is backbone.model.get_input_embeddings().weight:
        raise ValueError(
            "adapter_head: include needs an output head of its own, but this backbone's shares the weights of the "
            "input embeddings: leave it at drop"
        )
    (name,) = (name for name, module in backbone.model.named_modules() if module is head)
    return str(name)
