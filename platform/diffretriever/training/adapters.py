"""Adapters in training: attach one to a backbone, save it, and load one to start from.

LoRA's target modules are the projections of attention and feed-forward layers (paper §4.1), not the output head. An
adapter's folder has PEFT's two files, slot layers and the training's manifest.

Legend: B texts, L length, T tokens of all texts, I inputs and O outputs of a matrix, R rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners import lora
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import linear

from diffretriever import __version__
from diffretriever.backbones.adapter import (
    WEIGHT_FILE,
    AdapterFiles,
    LowRank,
    match_modules,
    module_names,
    outside_of_layers,
)
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint, read_tensors
from diffretriever.backbones.slot_layers import (
    MODULE,
    SLOTS_FILE,
    SlotLayers,
    attach_slot_layers,
    read_max_slots,
    read_slot_layers,
)
from diffretriever.backbones.source import resolve_adapter, resolve_source
from diffretriever.core.files import file_digest, whole_folder
from diffretriever.schemas.retriever import BackboneConfig, Readout
from diffretriever.schemas.training import LORA_ALPHA, LORA_RANK, MANIFEST_FILE, Recipe, Start, TrainingManifest
from diffretriever.training.data.seeds import seed_torch

ADAPTER = "adapter"
"""Name of the adapter's folder in checkpoints and in the output folder."""

_LIBRARIES = ("torch", "transformers", "peft", "ray")


def attach_lora(
    backbone: Backbone, recipe: Recipe, readout: Readout = "states", word_weights_V: Tensor | None = None
) -> LoraConfig:
    """Add a new adapter to a backbone in place, freeze all other weights, and return PEFT's config.

    A and B are float32; with weights of lower precision, each pass rounds them, as in the authors' DeepSpeed
    configuration. Initial values depend only on the seed, and B and the token head are zero. `word_weights_V` are
    factors of the impacts, float32 on the CPU.
    """
    config = lora_config(backbone, recipe)
    # Disable BERT's own dropout: the recipe's is the only one for all architectures.
    for module in backbone.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    seed_torch("lora", recipe.seed)
    inject_adapter_in_model(config, backbone.model)
    layers = _new_slot_layers(backbone, recipe, readout, word_weights_V)
    if layers.tensors():
        attach_slot_layers(backbone.model, layers)
    for parameter in trainable_parameters(backbone).values():
        parameter.data = parameter.data.float()
    if backbone.dtype != torch.float32:
        for module in backbone.model.modules():
            if isinstance(module, lora.Linear):
                module.__class__ = HalfPrecisionLora
    if recipe.gradient_checkpointing:
        backbone.model.activation_checkpointing_enable({"use_reentrant": False})
        # Only reentrant checkpointing needs it.
        backbone.model.disable_input_require_grads()
    backbone.model.eval()
    return config


class HalfPrecisionLora(lora.Linear):
    """PEFT's layer with products in the precision of its inputs; PEFT's conversion to float32 is slow on a GPU.

    It is a class, so that all layers share one compiled graph.
    """

    def forward(self, inputs_BLI: Tensor) -> Tensor:
        """Return [B, L, O]."""
        dtype = inputs_BLI.dtype
        dropout, down, up = (part["default"] for part in (self.lora_dropout, self.lora_A, self.lora_B))
        outputs_BLO: Tensor = self.base_layer(inputs_BLI)
        low_TR = self.scaling["default"] * linear(dropout(inputs_BLI), down.weight.to(dtype)).flatten(0, -2)
        # In place through a view: `outputs_BLO` changes.
        outputs_BLO.view(-1, outputs_BLO.shape[-1]).addmm_(low_TR, up.weight.to(dtype).T)
        return outputs_BLO


def _new_slot_layers(backbone: Backbone, recipe: Recipe, readout: Readout, word_weights_V: Tensor | None) -> SlotLayers:
    size = backbone.hidden_size
    embeddings_SH = token_head_HH = residual_HH = attention_HH = None
    if recipe.slot_layers:
        # Random, with the deviation of the input embeddings: equal vectors would stay equal for long.
        deviation = float(backbone.model.get_input_embeddings().weight.float().std())
        embeddings_SH = deviation * torch.randn(recipe.slot_layers, size)
        token_head_HH = torch.zeros(size, size)
    # Identity, so that slots attend to similar states: with uniform attention all slots would remain the mean.
    if readout == "pooling":
        residual_HH, attention_HH = torch.eye(size), torch.eye(size)
    return SlotLayers(embeddings_SH, token_head_HH, residual_HH, attention_HH, word_weights_V)


def lora_config(backbone: Backbone, recipe: Recipe) -> LoraConfig:
    """Return PEFT's config of a recipe's adapter."""
    return LoraConfig(
        r=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        lora_dropout=recipe.lora_dropout,
        target_modules=list(backbone.lora_targets),
        bias="none",
    )


def trainable_parameters(backbone: Backbone) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradients, by name, in the model's order."""
    return {name: parameter for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}


def adapter_tensors(backbone: Backbone) -> dict[str, torch.Tensor]:
    """Return LoRA's tensors on the CPU, without slot layers, by PEFT's names in files."""
    return {
        f"base_model.model.{name.replace('.default.', '.')}": parameter.detach().cpu().contiguous()
        for name, parameter in trainable_parameters(backbone).items()
        if not name.startswith(f"{MODULE}.")
    }


def save_adapter(backbone: Backbone, config: LoraConfig, manifest: TrainingManifest, target: Path) -> TrainingManifest:
    """Write the adapter of `backbone` to a new folder `target` and return its completed manifest.

    Raises:
        ValueError: The adapter is empty, not finite, or unchanged by the training.
    """
    with whole_folder(target) as folder:
        config.inference_mode = True
        # The order of a set differs between processes.
        config.target_modules = sorted(config.target_modules)
        config.save_pretrained(str(folder))
        save_file(adapter_tensors(backbone), folder / WEIGHT_FILE, metadata={"format": "pt"})
        if backbone.slot_layers is not None:
            save_file(backbone.slot_layers.tensors(), folder / SLOTS_FILE)
        check_trained(folder, manifest.step)
        written = manifest.model_copy(
            update={
                "adapter": file_digest(folder / WEIGHT_FILE),
                "slots": None if backbone.slot_layers is None else file_digest(folder / SLOTS_FILE),
                "versions": _versions(),
            }
        )
        (folder / MANIFEST_FILE).write_text(written.model_dump_json(indent=2) + "\n", "utf-8")
    return written


def _versions() -> dict[str, str]:
    # On a cluster, the package may not be installed, so `version` cannot find it.
    return {library: version(library) for library in _LIBRARIES} | {"diffretriever": __version__}


def check_trained(folder: Path, step: int) -> None:
    """Read a saved adapter and check its values.

    Raises:
        ValueError: There are no tensors, a value is not finite, or every B is still zero after `step` > 0 steps.
    """
    files = AdapterFiles.open(folder)
    slots = read_tensors(folder / SLOTS_FILE) if (folder / SLOTS_FILE).is_file() else {}
    for name, tensor in (files.tensors | slots).items():
        if not tensor.isfinite().all():
            raise ValueError(f"{files.file}: '{name}' has values that are not finite after step {step}")
    changed = [bool(t.any()) for name, t in files.tensors.items() if files.parse(name)[1] == "B"]
    if step and not any(changed):
        raise ValueError(f"{files.file}: every B is zero after {step} steps: the adapter has no effect")


def adapter_digest(folder: Path) -> str:
    """Return the SHA-256 of an adapter's tensor files, in hex."""
    files = [folder / name for name in (WEIGHT_FILE, SLOTS_FILE) if (folder / name).is_file()]
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()


def describe_start(backbone_config: BackboneConfig, recipe: Recipe) -> Start | None:
    """Return the adapter that a training starts from, if the backbone's config names one.

    Raises:
        ValueError: The adapter is missing, or has a rank or slots that the recipe does not train.
    """
    if backbone_config.adapter is None:
        return None
    folder = resolve_adapter(backbone_config.adapter, backbone_config.adapter_revision)
    config, slots = AdapterFiles.open(folder).config, read_max_slots(folder) or 0
    if config["r"] != LORA_RANK:
        raise ValueError(f"{folder}: rank {config['r']}, but training uses {LORA_RANK}: start from another adapter")
    if slots > recipe.slot_layers:
        raise ValueError(
            f"{folder}: layers for {slots} slots, but the recipe has {recipe.slot_layers}: set --recipe minilm, or "
            "start from another adapter"
        )
    return Start(
        adapter=backbone_config.adapter, revision=backbone_config.adapter_revision, digest=adapter_digest(folder)
    )


def read_start(backbone: Backbone, backbone_config: BackboneConfig, start: Start | None) -> StartingValues | None:
    """Read the adapter that a training starts from, for a backbone without an adapter.

    Raises:
        ValueError: The adapter is missing, has changed since the training began, or does not fit this backbone.
    """
    if start is None:
        return None
    folder = resolve_adapter(start.adapter, start.revision)
    if adapter_digest(folder) != start.digest:
        raise ValueError(f"{folder}: the adapter is not what it was when this training began: restore the old one")
    files = AdapterFiles.open(folder)
    checkpoint = Checkpoint.open(resolve_source(backbone_config.source, backbone_config.revision))
    names = module_names(backbone, checkpoint)
    parts = match_modules(files, backbone.model, names)
    if backbone_config.adapter_head == "drop":
        on_head = outside_of_layers(backbone.model)
        parts = {name: part for name, part in parts.items() if name not in on_head}
    return StartingValues(files.file, parts, read_slot_layers(folder, backbone.hidden_size, backbone.vocab_size))


@dataclass(frozen=True)
class StartingValues:
    """The tensors of an adapter by module name."""

    file: Path
    parts: dict[str, LowRank]
    slots: SlotLayers | None

    @torch.no_grad()
    def copy_to(self, backbone: Backbone) -> None:
        """Copy these values into the new adapter of `backbone`; other tensors keep their values.

        Raises:
            ValueError: The new adapter lacks a module.
        """
        for name, part in self.parts.items():
            layer = backbone.model.get_submodule(name)
            if not hasattr(layer, "lora_A"):
                raise ValueError(
                    f"{self.file}: it adapts {name}, which is not trained: start from another adapter, or, if it is on "
                    "the output head, set backbone.adapter_head: drop in the retriever's YAML file"
                )
            a_RI, b_OR = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            a_RI.copy_(part.a_RI)
            # B absorbs the difference of the two scales.
            b_OR.copy_(part.b_OR.float() * (part.scale / layer.scaling["default"]))
        if self.slots is None:
            return
        layers = backbone.slot_layers
        assert layers is not None, "`describe_start` has checked it"
        for name, tensor in self.slots.tensors().items():
            values = getattr(layers, name)
            # Further slots keep their values.
            values[: len(tensor)] = tensor.to(values.device)
