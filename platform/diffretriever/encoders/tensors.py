"""Small tensor helpers that the encoders share.

Legend: B texts of a batch, L padded length, H hidden size, M vectors of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def pad_right(rows: Sequence[np.ndarray], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 [B, L] with `fill` after each row's end, and the mask int64 [B, L] of real entries."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    mask_BL = (torch.arange(width)[None, :] < lengths[:, None]).long()
    ids_BL = torch.full((len(rows), width), fill, dtype=torch.int64)
    if width:
        ids_BL[mask_BL.bool()] = torch.from_numpy(np.concatenate(rows)).long()
    return ids_BL, mask_BL


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """L2-normalise the last dimension in fp32."""
    return torch.nn.functional.normalize(vectors.float(), dim=-1, eps=1e-12)


def unit_float16(vectors_MH: torch.Tensor) -> np.ndarray:
    """L2-normalise and round to float16 [M, H], the form at rest."""
    return unit(vectors_MH).to(torch.float16).cpu().numpy()
