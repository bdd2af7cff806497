"""Pooling: one vector per text (paper §4.2), the mean of its states (DiffEmbed, all-MiniLM) or the last (RepLLaMA).

Legend: B texts of a batch, P positions read, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diffretriever.backbones.device import to_host
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.slot_layers import mean_state
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PrefixedPreparer, PreparedText
from diffretriever.encoders.readout import TextStates, unit_float16
from diffretriever.schemas.retriever import PooledRetriever
from diffretriever.vectors.representations import Representations


class PooledEncoder(BackboneEncoder):
    """Encodes a text as the fp32 mean of its final hidden states, or as the last one, L2-normalised."""

    config: PooledRetriever
    preparer_class = PrefixedPreparer

    def encode_batch(self, texts: Sequence[PreparedText]) -> torch.Tensor:
        """Return the vectors of one batch, float16 [B, H]."""
        with torch.inference_mode():
            return to_host(unit_float16(self.forward(texts).hidden_BKH[:, 0]))

    def represent(self, texts: Sequence[PreparedText], computed: torch.Tensor) -> Representations:
        """See the base class."""
        return Representations.of_vectors(computed.numpy(), [1] * len(texts), [text.n_tokens for text in texts])

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """See the base class: pooled states, float32 [B, 1, H]."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.vocabulary.pad_token_id)
        mean = self.config.pooling == "mean"
        positions_BP = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape) if mean else mask_BL.sum(1, keepdim=True) - 1
        no_tokens = torch.zeros(0, dtype=torch.int64)
        hidden_BPH, _ = self.backbone.forward(ids_BL, mask_BL, positions_BP, no_tokens)
        pooled_BH = mean_state(hidden_BPH, mask_BL.gather(1, positions_BP))
        return TextStates(pooled_BH[:, None], torch.ones(len(texts), 1, dtype=torch.bool))
