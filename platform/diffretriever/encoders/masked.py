"""DiffRetriever: K mask slots after a retrieval prompt, all read in one bidirectional pass (paper §3.2, Eq. 1).

`denoising` has that pass, and those of the multi-step variant. Sequence: prompt, text, prompt, slots, tail. Legend:
B texts of a batch, L padded length, K most slots of the batch, T most content ids of the batch, G ids whose logits are
read, H hidden size, M slots of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.denoising import MaskedBatch, SlotReader
from diffretriever.encoders.framing import Following, PromptedPreparer
from diffretriever.encoders.impacts import content_ids, pooled_impacts, strongest_words
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.encoders.tensors import offsets_of, pad_right, unit_float16
from diffretriever.encoders.unmasking import before_stop
from schemas.retriever import BackboneRetriever, MaskedRetriever
from schemas.retriever_parts import Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary

# Spread slots lie this far apart and from the end of the position table. Measured on the embedded backbone, which
# never saw a run of masks: neighbouring slots at natural positions all give the same vector.
_SPREAD_STEP = 16
_SPREAD_MARGIN = 12


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
        spread = _SPREAD_MARGIN + _SPREAD_STEP * (slots - 1)
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


class MaskedEncoder(BackboneEncoder):
    """Reads hidden states and the logits of content ids at the slots."""

    config: MaskedRetriever
    preparer: MaskedPreparer

    @classmethod
    def make_preparer(cls, config: MaskedRetriever, vocabulary: Vocabulary) -> MaskedPreparer:
        """Return the preparer that puts slots after the prompt."""
        return MaskedPreparer(vocabulary, config)

    @classmethod
    def load(cls, config: BackboneRetriever, device: str) -> Self:
        """Load as every encoder over a backbone.

        Raises:
            ValueError: the adapter has vectors for fewer slots than the budget asks for.
        """
        encoder = super().load(config, device)
        layers = encoder.backbone.slot_layers
        budget = encoder.config.budget
        if layers is not None and layers.slots is not None and layers.slots < max(budget.query, budget.passage):
            raise ValueError(
                f"budget {budget}: the adapter {config.backbone.adapter} was trained with vectors for "
                f"{layers.slots} slots; take a budget up to that"
            )
        return encoder

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent one batch: one forward pass, or S of them; slots that come after a stop are left out if asked.

        Raises:
            ValueError: a logit that decides on tokens is not a finite number.
        """
        content = content_ids(texts, fold_space_variants=self.config.content_words.fold_space_variants)
        batch = self.masked_batch(texts, content.gathered_BG)
        found = SlotReader(self.backbone, self.config).read(batch)
        kept_BK = batch.valid_BK
        if self.config.stop_truncation != "none":
            kept_BK = before_stop(found.tokens_BK, kept_BK, self._stop_ids)
        logits_BKT = content.fold(found.logits_BKG)
        impact_ids, impact_weights, impact_offsets = pooled_impacts(
            content, logits_BKT, kept_BK, topk=self.config.sparse_topk, rounding=self.config.sparse_rounding
        )
        return Representations(
            vectors_MH=unit_float16(found.hidden_BKH[kept_BK]),
            offsets=offsets_of(kept_BK.sum(1).numpy()),
            slot_tokens=strongest_words(content, logits_BKT)[kept_BK].numpy(),
            impact_ids=impact_ids,
            impact_weights=impact_weights,
            impact_offsets=impact_offsets,
            n_tokens=np.array([text.n_tokens for text in texts], np.int32),
        )

    @cached_property
    def _stop_ids(self) -> torch.Tensor:
        """The stop set that the config names, int64 (reference §2.5)."""
        vocabulary = self.preparer.vocabulary
        stops = set(vocabulary.tokenizer.all_special_ids)
        if self.config.stop_truncation != "special":
            stops.add(vocabulary.turn_end_id)
        if self.config.stop_truncation == "quote":
            stops.add(vocabulary.quote_id)
        return torch.tensor(sorted(stops - {vocabulary.mask_token_id, None}))

    def masked_batch(self, texts: Sequence[PreparedText], gathered_BG: torch.Tensor) -> MaskedBatch:
        """Return the sequences of `texts`, and where their slots are; `gathered_BG` are the ids to read logits of."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.vocabulary.pad_token_id)
        slots_B = torch.tensor([text.slots for text in texts])
        first_B = mask_BL.sum(1) - slots_B - len(self.preparer.tail)
        index_K = torch.arange(int(slots_B.max()))
        valid_BK = index_K < slots_B[:, None]
        columns_BK = first_B[:, None] + torch.where(valid_BK, index_K, 0)
        index_BL = torch.arange(mask_BL.shape[1]) - first_B[:, None]
        slots_BL = torch.where(index_BL < slots_B[:, None], index_BL, -1).clamp(min=-1)
        position_ids_BL = self._position_ids(slots_BL, mask_BL)
        return MaskedBatch(ids_BL, mask_BL, position_ids_BL, columns_BK, valid_BK, gathered_BG, slots_BL)

    def _position_ids(self, slots_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor | None:
        if self.config.slot_positions == "natural":
            return None
        # What follows the slots stands where it would without them.
        natural_BL = (mask_BL.bool() & (slots_BL < 0)).cumsum(1) - 1
        spread_BL = self.backbone.max_length - _SPREAD_MARGIN - _SPREAD_STEP * slots_BL
        return torch.where(slots_BL >= 0, spread_BL, natural_BL).clamp(min=0)
