"""From logits at slots to impacts: the sparse side of every method that has one (paper Eq. 3).

Legend: B texts of a batch, K most slots of the batch, T most content ids of the batch, G ids whose logits are needed:
T, or 2T where variants with a leading space count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.tensors import offsets_of, pad_right
from diffretriever.scoring.sparse import Rounding, keep_topk, log_relu, max_pool, quantise


class ContentIds(NamedTuple):
    """The content ids of a batch."""

    ids_BT: torch.Tensor
    """int64."""
    mask_BT: torch.Tensor
    """bool, False where a text has fewer ids."""
    gathered_BG: torch.Tensor
    """int64, the ids to gather logits of: `ids_BT`, and after them the variants where they count."""

    def fold(self, logits_BKG: torch.Tensor) -> torch.Tensor:
        """Return [B, K, T]: the logits of `ids_BT`, those of a variant where they are larger."""
        if logits_BKG.shape[-1] == self.ids_BT.shape[1]:
            return logits_BKG
        return torch.maximum(*logits_BKG.chunk(2, dim=-1))


def content_ids(texts: Sequence[PreparedText], *, fold_space_variants: bool) -> ContentIds:
    """Return the content ids of `texts`, on the CPU."""
    ids_BT, mask_BT = pad_right([text.content_ids for text in texts], 0)
    gathered_BG = ids_BT
    if fold_space_variants:
        gathered_BG = torch.cat([ids_BT, pad_right([text.variant_ids for text in texts], 0)[0]], dim=1)
    return ContentIds(ids_BT, mask_BT.bool(), gathered_BG)


def pooled_impacts(
    content: ContentIds, logits_BKT: torch.Tensor, valid_BK: torch.Tensor, *, topk: int | None, rounding: Rounding
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Max-pooled log(1 + ReLU) over slots (paper Eq. 3), zeros left out.

    Args:
        content: of the batch.
        logits_BKT: float32 on the CPU, what `ContentIds.fold` returns.
        valid_BK: bool, False for slots that a text does not have.
        topk: most impacts of a text; None for all.
        rounding: see `quantise`.

    Returns:
        ids int32 and weights float32, of all texts together, and offsets int64 [B + 1].
    """
    pooled_BT = max_pool(log_relu(logits_BKT), valid_BK)
    weights_BT = quantise(pooled_BT.numpy(), rounding)
    # NaN is kept, to be refused by who stores or searches: without it the text would only seem to lack the word.
    keep_BT = ~(weights_BT <= 0) & content.mask_BT.numpy()
    ids_BT = content.ids_BT.numpy().astype(np.int32)
    rows = [(ids[keep], weights[keep]) for ids, weights, keep in zip(ids_BT, weights_BT, keep_BT, strict=True)]
    if topk is not None:
        rows = [keep_topk(ids, weights, topk) for ids, weights in rows]
    return (
        np.concatenate([ids for ids, _ in rows]),
        np.concatenate([weights for _, weights in rows]),
        offsets_of([len(ids) for ids, _ in rows]),
    )


def strongest_words(content: ContentIds, logits_BKT: torch.Tensor) -> torch.Tensor:
    """The content id each slot predicts most strongly, int32 [B, K]; -1 for a text without content words."""
    if content.ids_BT.shape[1] == 0:
        return torch.full(logits_BKT.shape[:2], -1, dtype=torch.int32)
    best_BK = logits_BKT.masked_fill(~content.mask_BT[:, None, :], -torch.inf).argmax(-1)
    tokens_BK = content.ids_BT.gather(1, best_BK)
    return torch.where(content.mask_BT.any(1)[:, None], tokens_BK, -1).int()
