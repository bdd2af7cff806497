"""Texts to sequences with slots: prompt, text, prompt, slots, tail (paper Eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diffretriever.encoders.framing import Following, PromptedPreparer
from diffretriever.encoders.prepared import PreparedText
from schemas.retriever import MaskedRetriever
from schemas.retriever_parts import Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary

# Spread slots lie this far apart and from the end of the position table. Measured on the embedded backbone, which
# never saw a run of masks: neighbouring slots at natural positions all give the same vector.
SPREAD_STEP = 16
SPREAD_MARGIN = 12


class MaskedPreparer(PromptedPreparer):
    """Appends slots and tail to the framed text."""

    config: MaskedRetriever

    def __init__(self, vocabulary: Vocabulary, config: MaskedRetriever) -> None:
        super().__init__(vocabulary, config)
        if vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill slots: choose another method")
        self.tail = _tail(vocabulary, config.tail_length)

    def default_slots(self, side: Side) -> int:
        """K_q or K_p of the configured budget."""
        return self.config.budget.query if side == "query" else self.config.budget.passage

    def _following(self, slots: int) -> Following:
        spread = SPREAD_MARGIN + SPREAD_STEP * (slots - 1)
        if self.config.slot_positions == "spread" and spread > self.vocabulary.max_length:
            raise ValueError(
                f"{slots} spread slots need {spread} positions, the model has {self.vocabulary.max_length}: "
                "take a smaller budget or natural slot positions"
            )
        description = f"{slots} slots and {len(self.tail)} tail tokens"
        return Following(slots + len(self.tail), description, remedy="a smaller budget")

    def _place(self, text: str, row: list[int], side: Side, slots: int) -> PreparedText:
        left, right = self._frame(side, slots)
        mask = self.vocabulary.mask_token_id
        assert mask is not None
        ids = np.array([*left, *row, *right, *[mask] * slots, *self.tail], np.int32)
        own_ids, variant_ids = self._content_words(text)
        return PreparedText(ids, slots, own_ids, variant_ids, len(row))


def _tail(vocabulary: Vocabulary, length: int) -> list[int]:
    """Closing quote, turn end, end of sequence (paper Eq. 1); what a vocabulary lacks is left to the last of them."""
    end = vocabulary.eos_token_id
    if length == 0 or end is None:
        return []
    if length == 1:
        return [end]
    turn_end = vocabulary.turn_end_id
    tail = [] if vocabulary.quote_id is None else [vocabulary.quote_id]
    if turn_end is not None and turn_end != end:
        tail.append(turn_end)
    return (tail + [end] * length)[:length]
