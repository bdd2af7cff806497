"""DiffRetriever: K mask slots after a retrieval prompt, all read in one bidirectional pass (paper §3.2, Eq. 1).

`masked_preparer` makes the sequences; `denoising` has that pass, and those of the multi-step variant. Legend: B texts
of a batch, L padded length, K most slots of the batch, T most content ids of the batch, G ids whose logits are read, H
hidden size, M slots of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.denoising import MaskedBatch, SlotReader, SlotReadings
from diffretriever.encoders.impacts import ContentIds, content_ids, pooled_impacts, strongest_words
from diffretriever.encoders.masked_preparer import SPREAD_MARGIN, SPREAD_STEP, MaskedPreparer
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.encoders.tensors import offsets_of, pad_right, unit_float16
from diffretriever.encoders.unmasking import before_stop
from schemas.retriever import BackboneRetriever, MaskedRetriever

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary


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
        return self._encode_batch_cut(texts, [None])[0]

    def encode_cut(self, texts: Sequence[PreparedText], budgets: Sequence[int]) -> list[Representations]:
        """Represent prepared texts once for several budgets of nested slots: for each, by their first slots.

        Args:
            texts: prepared with the largest budget.
            budgets: numbers of slots to keep; a text that has fewer keeps those.

        Returns:
            For each of `budgets` what encoding with that budget gives, up to the rounding of sums.
        """
        assert self.config.nested_slots, "other slots depend on the number of slots"
        if not texts:
            return [self._empty() for _ in budgets]
        return self._in_batches(texts, lambda batch: self._encode_batch_cut(batch, budgets))

    def _encode_batch_cut(self, texts: Sequence[PreparedText], budgets: Sequence[int | None]) -> list[Representations]:
        content = content_ids(texts, fold_space_variants=self.config.content_words.fold_space_variants)
        batch = self.masked_batch(texts, content.gathered_BG)
        found = SlotReader(self.backbone, self.config).read(batch)
        return [self._represented(texts, content, found, _first(batch.valid_BK, budget)) for budget in budgets]

    def _represented(
        self, texts: Sequence[PreparedText], content: ContentIds, found: SlotReadings, kept_BK: torch.Tensor
    ) -> Representations:
        """Return what the slots `kept_BK` say, less those after a stop."""
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
        spread_BL = self.backbone.max_length - SPREAD_MARGIN - SPREAD_STEP * slots_BL
        return torch.where(slots_BL >= 0, spread_BL, natural_BL).clamp(min=0)


def _first(valid_BK: torch.Tensor, budget: int | None) -> torch.Tensor:
    return valid_BK if budget is None else valid_BK & (torch.arange(valid_BK.shape[1]) < budget)
