"""Batches of token ids, and edits of checkpoints, for the tests.

Shapes: B batch, L padded length, P positions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffretriever.backbones.base import Backbone

BackboneOf = Callable[[str], Backbone]
FolderOf = Callable[[str], Path]
PREFIX = "base_model.model."


class Batch(NamedTuple):
    ids_BL: Tensor
    mask_BL: Tensor
    last_B1: Tensor


def texts(*lengths: int, seed: int = 0, vocab: int = 250) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (length,), generator=generator) for length in lengths]


def pad(rows: list[Tensor], *, side: str = "left", pad_id: int = 0) -> Batch:
    """Pad to the longest row, and name the column of each row's last token."""
    longest = max(map(len, rows))
    ids_BL = torch.full((len(rows), longest), pad_id)
    mask_BL = torch.zeros(len(rows), longest, dtype=torch.long)
    last_B1 = torch.zeros(len(rows), 1, dtype=torch.long)
    for row, ids_L in enumerate(rows):
        start = longest - len(ids_L) if side == "left" else 0
        ids_BL[row, start : start + len(ids_L)] = ids_L
        mask_BL[row, start : start + len(ids_L)] = 1
        last_B1[row] = start + len(ids_L) - 1
    return Batch(ids_BL, mask_BL, last_B1)


@torch.inference_mode()
def hidden(backbone: Backbone, batch: Batch, offsets: tuple[int, ...] = (-2, -1, 0)) -> Tensor:
    """Hidden states [B, P, H] at the last tokens of each row."""
    positions_BP = batch.last_B1 + torch.tensor([offsets])
    return backbone.forward(batch.ids_BL, batch.mask_BL, positions_BP, torch.tensor([], dtype=torch.long)).hidden


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


def edit_config(folder: Path, **changes: Any) -> None:
    """Set fields of the config of a checkpoint or an adapter; a value of `...` removes the field."""
    file = _file(folder, "adapter_config.json", "config.json")
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Replace the tensors of a checkpoint or an adapter."""
    file = _file(folder, "adapter_model.safetensors", "model.safetensors")
    tensors = {name: t.clone(memory_format=torch.contiguous_format) for name, t in change(load_file(file)).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def drop(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return a change for `edit_tensors` that removes tensors."""
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def _file(folder: Path, *names: str) -> Path:
    return next(folder / name for name in names if (folder / name).is_file())
