"""From a source to a running backbone, or to its vocabulary alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from diffretriever.backbones import FAMILIES
from diffretriever.backbones.adapter import AdapterFiles, AdapterHead, apply_adapter
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint, read_json
from diffretriever.backbones.device import FLOAT8, resolve_attention, resolve_device, resolve_dtype
from diffretriever.backbones.float8 import check_float8, use_float8
from diffretriever.backbones.source import resolve_adapter, resolve_source
from diffretriever.backbones.vocabulary import Vocabulary
from diffretriever.backbones.weights import load_model


def load_backbone(  # noqa: PLR0913 (a backbone's place and its adapter's)
    source: str | Path,
    *,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    attention: str = "auto",
    adapter: str | Path | None = None,
    adapter_revision: str | None = None,
    adapter_head: AdapterHead = "include",
    merge_adapter: bool = True,
    accepted_fields: Collection[str] = (),
) -> Backbone:
    """Load a backbone in evaluation mode. Never runs code from a checkpoint.

    Args:
        source: A folder with config.json and safetensors, a hub id, or `minilm` (the embedded default).
        dtype: `auto`, `float32`, `bfloat16` or `float16`; see `device.resolve_dtype`. `float8`: see `float8`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        revision: Branch, tag or commit of a hub id.
        attention: `packed` computes texts without padding, `sdpa` with it. `auto` packs on a GPU with a kernel for it
            in this precision, and on a CPU in bfloat16.
        adapter: A LoRA adapter: a folder with adapter_config.json and adapter_model.safetensors in PEFT's format, or a
            hub id. Modules are named as in transformers or as in the family's checkpoints. Slot layers in
            slots.safetensors are put on the backbone too.
        adapter_revision: Branch, tag or commit of an adapter's hub id.
        adapter_head: `drop` leaves out the adapter's part on the output head, which touches logits only.
        merge_adapter: Whether the adapter is added into the weights; False keeps it apart, to be trained.
        accepted_fields: Unknown fields of config.json that have no effect.

    Raises:
        ValueError: The source cannot be found; its family or a field of its config.json is unknown; its tensors are not
            those of its config; the same of the adapter; or an option cannot be met.
    """
    is_float8 = dtype == FLOAT8
    if is_float8 and adapter is not None and not merge_adapter:
        raise ValueError(f"merge_adapter: dtype '{FLOAT8}' needs an adapter that is added into the weights: set it.")
    if adapter is None and adapter_revision is not None:
        raise ValueError(f"adapter_revision {adapter_revision!r} has no meaning without an adapter.")
    files = None if adapter is None else AdapterFiles.open(resolve_adapter(adapter, adapter_revision))
    checkpoint = Checkpoint.open(resolve_source(source, revision))
    family = family_of(checkpoint.config, checkpoint.config_file)
    target = resolve_device(device)
    if is_float8:
        check_float8(target)
    precision = resolve_dtype("bfloat16" if is_float8 else dtype, target)
    family.fields.check(checkpoint.config, checkpoint.config_file, accepted_fields)
    model = load_model(family, checkpoint, precision, resolve_attention(attention, target, precision, packs=True))
    backbone = family(model.to(target), checkpoint)
    if files is not None:
        apply_adapter(backbone, files, checkpoint, head=adapter_head, merge=merge_adapter)
    if is_float8:
        use_float8(backbone)
    return backbone


def load_vocabulary(source: str | Path, *, revision: str | None = None) -> Vocabulary:
    """Load a backbone's tokenizer and special tokens only; of a hub id no weights are fetched.

    Raises:
        ValueError: The source cannot be found or fetched, or its family or its length is not known.
    """
    folder = resolve_source(source, revision, weights=False)
    config = read_json(folder / "config.json")
    family = family_of(config, folder / "config.json")
    return family.vocabulary_class(folder, config, family.turn_end)


def family_of(config: Mapping[str, Any], config_file: Path) -> type[Backbone]:
    """Return the family that reads a checkpoint with this config; `ValueError` for an unknown `model_type`."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"{config_file}: model_type {model_type!r} is not supported. Supported: {', '.join(sorted(FAMILIES))}."
        )
    module, name = FAMILIES[model_type].split(":")
    family: type[Backbone] = getattr(import_module(module), name)
    return family
