"""Backbones whose random weights are drawn on the device itself: models of published sizes within seconds."""

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
    """Return a backbone with random weights, as large as those of `checkpoints.random_tensors`, in evaluation mode.

    Its attention is `sdpa`; `model.set_attn_implementation` changes it. Devices draw different weights. `folder` gets
    config.json and the small tokenizer, without weights; the vocabulary of `size` must contain the tokenizer's.
    """
    published = FAMILIES[family]
    write_config(published, size, folder, dtype)
    write_tokenizer(published, build_tokenizer(published), folder)
    checkpoint = Checkpoint(folder, read_json(folder / "config.json"), (), {})
    of_family = family_of(checkpoint.config, checkpoint.config_file)
    place = resolve_device(device)
    with place:
        model = of_family.model_class(checkpoint)._from_config(  # noqa: SLF001 (the library has no public name for it)
            of_family.model_config(checkpoint), dtype=DTYPES[dtype], attn_implementation="sdpa"
        )
    _draw(model, torch.Generator(place).manual_seed(0))
    return of_family(model.eval(), checkpoint)


def write_checkpoint(backbone: Backbone, folder: Path) -> Path:
    """Write the weights of a `random_backbone` to its `folder`, in its family's format, and return the folder."""
    checkpoint = Checkpoint(folder, read_json(folder / "config.json"), (), {})
    tensors = {backbone.checkpoint_name(name, checkpoint): t for name, t in backbone.model.state_dict().items()}
    size = sum(tensor.nbytes for tensor in tensors.values())
    held = ((name, tensor.cpu().contiguous()) for name, tensor in tensors.items())
    write_weights(folder, tensors, held, shards=-(-size // _SHARD_BYTES))
    return folder


@torch.no_grad()
def _draw(model: Any, generator: torch.Generator) -> None:
    for name, tensor in model.named_parameters():
        tensor.normal_(generator=generator)
        if tensor.ndim == 2:
            tensor.div_(tensor.shape[1] ** 0.5)
        else:
            tensor.mul_(0.1).add_(is_norm_weight(name))
