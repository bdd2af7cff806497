"""The tokenizer's part of PromptReps: a text inside its prompt, and the tokens that end a generated answer.

Legend: V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.encoders.framing import Following, PromptedPreparer
from diffretriever.encoders.prepared import PreparedText
from schemas.retriever import GeneratedRetriever
from schemas.retriever_parts import Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary


class GeneratedPreparer(PromptedPreparer):
    """Prompt, text, prompt up to the opening quote; room is kept for the tokens to be generated (reference §1.6)."""

    config: GeneratedRetriever

    def default_slots(self, side: Side) -> int:
        """N, the most vectors of a text, on both sides."""
        return self.config.max_tokens

    def _following(self, slots: int) -> Following:
        # The last vector needs no token after it.
        return Following(slots - 1, f"{slots - 1} generated tokens", "fewer generated tokens (max_tokens)")

    def _place(self, text: str, row: list[int], side: Side, slots: int) -> PreparedText:
        left, right = self._frame(side, slots)
        # A bare frame makes nothing of an empty text: a pad then stands for it, as every text has a vector.
        ids = [*left, *row, *right] or [self.vocabulary.pad_token_id]
        content_ids, variant_ids = self._content_words(text)
        # At least one token is left to run after the prefix.
        shared = min(len(left), len(ids) - 1)
        return PreparedText(np.array(ids, np.int32), slots, content_ids, variant_ids, len(row), shared)


def closing_tokens(vocabulary: Vocabulary, vocab_size: int) -> torch.Tensor:
    """Return bool [V]: the tokens that close an answer, before they are fed.

    These are all whose text has a `"` in it, such as `".`, the end of the turn and the end of the sequence
    (paper §3.2, "until either a closing quote is produced"; so also the first PromptReps, reference §2.6).
    """
    tokenizer = vocabulary.tokenizer
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    quotes = [token for token, text in enumerate(texts) if '"' in text]
    ends = [token for token in (vocabulary.eos_token_id, vocabulary.turn_end_id) if token is not None]
    return _table([*quotes, *ends], vocab_size)


def cut_tokens(vocabulary: Vocabulary, vocab_size: int) -> torch.Tensor:
    """Return bool [V]: the tokens from which on the authors' zero-shot code leaves vectors out, after all are fed.

    These are the tokenizer's special tokens and the bare quote, but no other token with a quote (reference §2.6).
    """
    quote = [] if vocabulary.quote_id is None else [vocabulary.quote_id]
    return _table([*vocabulary.tokenizer.all_special_ids, *quote], vocab_size)


def _table(tokens: list[int], vocab_size: int) -> torch.Tensor:
    table_V = torch.zeros(vocab_size, dtype=torch.bool)
    table_V[tokens] = True
    return table_V
