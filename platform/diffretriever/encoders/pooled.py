"""Mean pooling: one vector a text, from all its tokens (DiffEmbed, paper §4.2; the way all-MiniLM is meant to be used).

Legend: B texts of a batch, L padded length, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diffretriever.encoders.base import Encoder, Preparer
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.encoders.tensors import offsets_of, pad_right, unit_float16
from schemas.retriever import Side

_NO_IDS = np.zeros(0, np.int32)


class PooledPreparer(Preparer):
    """The tokenizer's own form of a text, special tokens included, no prompt."""

    def default_slots(self, side: Side) -> int:
        """Pooled texts have no slots."""
        return 0

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise; `length_semantics: total` counts the special tokens, `text` does not."""
        added = self.vocabulary.tokenizer.num_special_tokens_to_add()
        limit = self._limit(side) + (added if self.text.length_semantics == "text" else 0)
        limit = min(limit, self.vocabulary.max_length)
        if limit <= added:
            raise ValueError(f"no room for the text: {added} of {limit} tokens are special. Raise the {side} limit.")
        rows = self._tokenise(texts, [limit] * len(texts), special=True)
        # A tokenizer without special tokens makes nothing of an empty text: a pad then stands for it, as every text
        # has a vector.
        nothing = [self.vocabulary.pad_token_id]
        return [PreparedText(np.array(row or nothing, np.int32), 0, _NO_IDS, _NO_IDS, len(row)) for row in rows]


class PooledEncoder(Encoder):
    """Mean of the final hidden states over the text's tokens, in fp32, then L2-normalised."""

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """One forward pass; no logits are computed."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.pad_token_id)
        positions_BL = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape)
        no_tokens = torch.zeros(0, dtype=torch.int64)
        with torch.inference_mode():
            hidden_BLH, _ = self.backbone.forward(ids_BL, mask_BL, positions_BL, no_tokens)
            hidden_BLH = hidden_BLH.float()
            weights_BL1 = mask_BL[..., None].to(hidden_BLH)
            pooled_BH = (hidden_BLH * weights_BL1).sum(1) / weights_BL1.sum(1).clamp(min=1)
        one_each = offsets_of(np.ones(len(texts), np.int64))
        n_tokens = np.array([text.n_tokens for text in texts], np.int32)
        return Representations(
            vectors_MH=unit_float16(pooled_BH),
            offsets=one_each,
            slot_tokens=np.full(len(texts), -1, np.int32),
            impact_ids=_NO_IDS,
            impact_weights=np.zeros(0, np.float32),
            impact_offsets=np.zeros(len(texts) + 1, np.int64),
            n_tokens=n_tokens,
        )
