"""Small tensor helpers that the encoders share.

Legend: B texts of a batch, L padded length, T padded number of ids, P positions, H hidden size, M all vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diffretriever.ragged import offsets_of

__all__ = ["offsets_of", "pad_right", "unit_float16"]


def pad_right(rows: Sequence[np.ndarray], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 [B, L] with `fill` after each row's end, and the mask int64 [B, L] of real entries."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    mask_BL = (torch.arange(width)[None, :] < lengths[:, None]).long()
    ids_BL = torch.full((len(rows), width), fill, dtype=torch.int64)
    if width:
        ids_BL[mask_BL.bool()] = torch.from_numpy(np.concatenate(rows)).long()
    return ids_BL, mask_BL


def unit_float16(vectors_MH: torch.Tensor) -> np.ndarray:
    """L2-normalise in fp32 and round to float16 [M, H], the form at rest."""
    unit_MH = torch.nn.functional.normalize(vectors_MH.float(), dim=-1, eps=1e-12)
    return unit_MH.to(torch.float16).cpu().numpy()
