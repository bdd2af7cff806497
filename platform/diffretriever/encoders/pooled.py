"""Pooling: one vector a text (paper §4.2).

The mean of all tokens' states (DiffEmbed; the way all-MiniLM is meant to be used) or the last one (RepLLaMA).

Legend: B texts of a batch, L padded length, P positions read, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.backbones.base import pad_right
from diffretriever.backbones.device import moved
from diffretriever.backbones.slot_layers import mean_state
from diffretriever.encoders.base import BackboneEncoder, TextStates
from diffretriever.encoders.launching import to_host
from diffretriever.encoders.preparer import NO_IDS, PreparedText, Preparer
from diffretriever.encoders.readout import unit_float16
from diffretriever.encoders.representations import Representations
from diffretriever.schemas.retriever import PooledRetriever, Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary


class PooledPreparer(Preparer):
    """The tokenizer's own form of prefix and text, special tokens included."""

    def __init__(self, vocabulary: Vocabulary, config: PooledRetriever) -> None:
        super().__init__(vocabulary, config.text)
        self.config = config
        self._end: list[int] = []
        if config.append_eos:
            if vocabulary.eos_token_id is None:
                raise ValueError("append_eos: this backbone has no end-of-sequence token")
            self._end = [vocabulary.eos_token_id]

    def default_slots(self, side: Side) -> int:
        """Pooled texts have no slots."""
        return 0

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise; `length_semantics: total` counts prefix and special tokens, `text` does not.

        Raises:
            ValueError: prefix and special tokens leave no room for a text.
        """
        prefix = self.config.query_prefix if side == "query" else self.config.passage_prefix
        # The space that ends a prefix becomes part of the text's first word.
        (framed,) = self.vocabulary.tokenise([prefix.rstrip()], [self.vocabulary.max_length], special=True)
        framing = len(framed) + len(self._end)
        limit = self._limit(side) + (framing if self.text.length_semantics == "text" else 0)
        limit = min(limit, self.vocabulary.max_length)
        if limit <= framing:
            raise ValueError(
                f"no room for the text: prefix and special tokens take {framing} of {limit} tokens. "
                f"Raise the {side} limit."
            )
        limits = [limit - len(self._end)] * len(texts)
        rows = self.vocabulary.tokenise([prefix + text for text in texts], limits, special=True)
        # A tokenizer without special tokens makes nothing of an empty text: a pad then stands for it, as every text
        # has a vector.
        nothing = [self.vocabulary.pad_token_id]
        ids = [row + self._end or nothing for row in rows]
        counts = [len(row) + len(self._end) for row in rows]
        return [PreparedText(np.array(i, np.int32), 0, NO_IDS, NO_IDS, n) for i, n in zip(ids, counts, strict=True)]


class PooledEncoder(BackboneEncoder):
    """Mean of the final hidden states over the text's tokens in fp32, or the last state, then L2-normalised."""

    config: PooledRetriever

    @classmethod
    def make_preparer(cls, config: PooledRetriever, vocabulary: Vocabulary) -> PooledPreparer:
        """Return the preparer that writes the prefix."""
        return PooledPreparer(vocabulary, config)

    def begin_batch(self, texts: Sequence[PreparedText]) -> Callable[[], Representations]:
        """Begin with one batch: one forward pass; no logits are computed."""
        with torch.inference_mode():
            vectors_BH = to_host(unit_float16(self.forward(texts).hidden_BKH[:, 0]))
        counts, n_tokens = [1] * len(texts), [text.n_tokens for text in texts]
        return lambda: Representations.of_vectors(vectors_BH.numpy(), counts, n_tokens)

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return the pooled states, float32 [B, 1, H]; see the base class."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.vocabulary.pad_token_id)
        mean = self.config.pooling == "mean"
        positions_BP = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape) if mean else mask_BL.sum(1, keepdim=True) - 1
        no_tokens = torch.zeros(0, dtype=torch.int64)
        hidden_BPH, _ = self.backbone.forward(ids_BL, mask_BL, positions_BP, no_tokens)
        pooled_BH = mean_state(hidden_BPH, moved(mask_BL.gather(1, positions_BP), hidden_BPH.device, torch.bool))
        return TextStates(pooled_BH[:, None], torch.ones(len(texts), 1, dtype=torch.bool))
