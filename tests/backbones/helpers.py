"""Batches of token ids, and edits of checkpoints, for the tests.

Shapes: B batch, L padded length, P positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffretriever.backbones import Backbone

BackboneOf = Callable[[str], Backbone]
FolderOf = Callable[[str], Path]


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


def edit_config(folder: Path, **changes: Any) -> None:
    """Set fields of config.json; a value of `...` removes the field."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
