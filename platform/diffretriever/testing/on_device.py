"""Backbones with random weights that are generated on the device: models of published sizes within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint, read_json
from diffretriever.backbones.device import DTYPES, resolve_device
from diffretriever.backbones.loader import family_of
from diffretriever.testing import FAMILIES
from diffretriever.testing.checkpoints import (
    build_tokenizer,
    is_norm_weight,
    write_config,
    write_tokenizer,
    write_weights,
)
from diffretriever.testing.published import Sizes

_SHARD_BYTES = 4 << 30


def random_backbone(family: str, size: Sizes, folder: Path, *, device: str, dtype: str = "bfloat16") -> Backbone:
    """Return a backbone with random weights in evaluation mode, with `sdpa` attention.

    Weights have the scale of `checkpoints.random_tensors`, and depend on the device. Config and the small tokenizer are
    written to `folder`, without weights. The vocabulary of `size` must be at least as large as the tokenizer's.
    """
    published = FAMILIES[family]
    write_config(published, size, folder, dtype)
    write_tokenizer(published, build_tokenizer(published), folder)
    checkpoint = Checkpoint(folder, read_json(folder / "config.json"), (), {})
    backbone_class = family_of(checkpoint.config, checkpoint.config_file)
    target = resolve_device(device)
    with target:
        model = backbone_class.model_class(checkpoint)._from_config(  # noqa: SLF001 (no public name)
            backbone_class.model_config(checkpoint), dtype=DTYPES[dtype], attn_implementation="sdpa"
        )
    _draw(model, torch.Generator(target).manual_seed(0))
    return backbone_class(model.eval(), checkpoint)


def write_checkpoint(backbone: Backbone, folder: Path) -> Path:
    """Write the weights of a `random_backbone` to its `folder` in the published format, and return the folder."""
    checkpoint = Checkpoint(folder, read_json(folder / "config.json"), (), {})
    state = backbone.model.state_dict()
    tensors = {theirs: state[ours] for ours, theirs in backbone.checkpoint_names(state, checkpoint).items()}
    size = sum(tensor.nbytes for tensor in tensors.values())
    on_cpu = ((name, tensor.cpu().contiguous()) for name, tensor in tensors.items())
    write_weights(folder, tensors, on_cpu, shards=-(-size // _SHARD_BYTES))
    return folder


@torch.no_grad()
def _draw(model: Any, generator: torch.Generator) -> None:
    for name, tensor in model.named_parameters():
        tensor.normal_(generator=generator)
        if tensor.ndim == 2:
            tensor.div_(tensor.shape[1] ** 0.5)
        else:
            tensor.mul_(0.1).add_(is_norm_weight(name))
