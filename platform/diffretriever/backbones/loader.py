"""Loads a backbone, or only its vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
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


def load_backbone(  # noqa: PLR0913 (a backbone's source and its adapter's)
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
    rope_factor: float = 1.0,
) -> Backbone:
    """Load a backbone in evaluation mode, without running code of the checkpoint.

    Args:
        source: folder with config.json and safetensors, URI, hub id, or `minilm` (the embedded default).
        dtype: `auto`, `float32`, `bfloat16`, `float16` or `float8`; see `device.resolve_dtype` and `float8`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        revision: branch, tag or commit of a hub id.
        attention: `packed` (without padding), `sdpa` (with padding) or `auto`, which packs if it is faster.
        adapter: LoRA adapter in PEFT's format, optionally with slot layers: a folder, URI or hub id.
        adapter_revision: branch, tag or commit of the adapter's hub id.
        adapter_head: `drop` ignores the adapter's part on the output head, which only affects logits.
        merge_adapter: whether to merge the adapter into the weights; False to train it.
        accepted_fields: unknown fields of config.json to ignore.
        rope_factor: factor of the rotary base and of the maximum length.

    Raises:
        ValueError: Source or adapter is missing, unknown or damaged, or an option is not supported.

    Example:
        >>> import torch
        >>> backbone = dr.load_backbone("minilm", device="cpu")
        >>> ids = torch.tensor([[101, 10529, backbone.vocabulary.mask_token_id, 102]])
        >>> hidden, logits = backbone.forward(ids, torch.ones_like(ids), positions=torch.tensor([[2]]))
        >>> hidden.shape, logits.shape
        (torch.Size([1, 1, 384]), torch.Size([1, 1, 30522]))
    """
    is_float8 = dtype == FLOAT8
    if is_float8 and adapter is not None and not merge_adapter:
        raise ValueError(f"dtype '{FLOAT8}' needs a merged adapter: set merge_adapter, or dtype to bfloat16")
    if adapter is None and adapter_revision is not None:
        raise ValueError(f"adapter_revision {adapter_revision!r} has no meaning without an adapter: remove it")
    files = None if adapter is None else AdapterFiles.open(resolve_adapter(adapter, adapter_revision))
    checkpoint = Checkpoint.open(resolve_source(source, revision))
    family = family_of(checkpoint.config, checkpoint.config_file)
    target = resolve_device(device)
    if is_float8:
        check_float8(target)
    precision = resolve_dtype("bfloat16" if is_float8 else dtype, target)
    family.fields.check(checkpoint.config, checkpoint.config_file, accepted_fields)
    if rope_factor != 1:
        checkpoint = _stretched(checkpoint, family, rope_factor)
    model = load_model(family, checkpoint, precision, resolve_attention(attention, target, precision, packs=True))
    backbone = family(model.to(target), checkpoint)
    if files is not None:
        apply_adapter(backbone, files, checkpoint, head=adapter_head, merge=merge_adapter)
    if is_float8:
        use_float8(backbone)
    return backbone


def _stretched(checkpoint: Checkpoint, family: type[Backbone], factor: float) -> Checkpoint:
    config, length = checkpoint.config, family.vocabulary_class.length_field
    if config.get("rope_theta") is None:
        raise ValueError(f"{checkpoint.config_file}: no field 'rope_theta' to scale: set rope_factor to 1")
    scaled = {"rope_theta": config["rope_theta"] * factor, length: int(config[length] * factor)}
    return replace(checkpoint, config=config | scaled)


def load_vocabulary(source: str | Path, *, revision: str | None = None) -> Vocabulary:
    """Load a backbone's tokenizer and special tokens, without fetching weights.

    Raises:
        ValueError: The source cannot be fetched, or its architecture or maximum length is unknown.
    """
    folder = resolve_source(source, revision, weights=False)
    config = read_json(folder / "config.json")
    family = family_of(config, folder / "config.json")
    return family.vocabulary_class(folder, config, family.turn_end)


def family_of(config: Mapping[str, Any], config_file: Path) -> type[Backbone]:
    """Return the backbone class of a config's `model_type`. Raises ValueError if it is unknown."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"{config_file}: model_type {model_type!r} is not supported: use one of {', '.join(sorted(FAMILIES))}"
        )
    family: type[Backbone] = resolve_name(FAMILIES[model_type])
    return family
