"""Adapters for the tests: their arithmetic done by hand on a checkpoint's own tensors, and edits of their files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffretriever.backbones import Backbone
from tests.backbones.helpers import Batch

PREFIX = "base_model.model."


def merge_by_hand(checkpoint: Path, adapter: Path, folder: Path, *, without: str = "\n") -> Path:
    """Write the checkpoint with W + 4 B A for each of the adapter's matrices but those in module `without`."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(checkpoint / "model.safetensors")
    changes = load_file(adapter / "adapter_model.safetensors")
    for name in [name for name in changes if name.endswith(".lora_A.weight")]:
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        if module != without:
            low, high = changes[name], changes[f"{PREFIX}{module}.lora_B.weight"]
            weights[f"{module}.weight"] = weights[f"{module}.weight"] + 4.0 * (high @ low)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.inference_mode()
def outputs(backbone: Backbone, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states and logits of the whole vocabulary at every column; pads are zero."""
    columns_BL = torch.arange(batch.ids_BL.shape[1]).expand(batch.ids_BL.shape)
    hidden_BLH, logits_BLV = backbone.forward(batch.ids_BL, batch.mask_BL, columns_BL)
    keep_BL1 = batch.mask_BL.bool()[..., None]
    return hidden_BLH.masked_fill(~keep_BL1, 0), logits_BLV.masked_fill(~keep_BL1, 0)


def edit_adapter_config(folder: Path, **changes: Any) -> None:
    """Set fields of adapter_config.json; a value of `...` removes the field."""
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Replace the adapter's tensors."""
    file = folder / "adapter_model.safetensors"
    tensors = change(load_file(file))
    save_file({name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}, file)
