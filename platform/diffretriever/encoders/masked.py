"""DiffRetriever: K mask slots after a retrieval prompt, all read in one bidirectional pass (paper §3.2, Eq. 1).

Sequence: prompt, text, prompt, slots, tail. Legend: B texts of a batch, L padded length, K most slots of the batch,
T most content ids of the batch, H hidden size, M slots of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.encoders.base import BackboneEncoder, Preparer
from diffretriever.encoders.content_words import ContentWords
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.encoders.tensors import offsets_of, pad_right, unit_float16
from diffretriever.prompts import build_prompt, frame
from diffretriever.scoring.sparse import keep_topk, log_relu, max_pool, quantise
from schemas.retriever import MaskedRetriever
from schemas.retriever_parts import Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary

# Spread slots lie this far apart and from the end of the position table. Measured on the embedded backbone, which
# never saw a run of masks: neighbouring slots at natural positions all give the same vector.
_SPREAD_STEP = 16
_SPREAD_MARGIN = 12


class MaskedPreparer(Preparer):
    """Frames a text with the prompt, appends slots and tail, finds its content ids."""

    def __init__(self, vocabulary: Vocabulary, config: MaskedRetriever) -> None:
        super().__init__(vocabulary, config.text)
        if vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill slots: choose another method")
        self.config = config
        self.tail = _tail(vocabulary, config.tail_length)
        self._content_words = ContentWords(vocabulary.tokenizer, config.content_words)
        self._frames: dict[tuple[Side, int], tuple[list[int], list[int]]] = {}

    def default_slots(self, side: Side) -> int:
        """K_q or K_p of the configured budget."""
        return self.config.budget.query if side == "query" else self.config.budget.passage

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Prepare `texts`; only the text is ever truncated."""
        limits = [self._text_limit(side, k) for k in slots]
        rows = self._tokenise(texts, limits, special=False)
        cut = [row[:limit] for row, limit in zip(rows, limits, strict=True)]
        return [self._place(text, row, side, k) for text, row, k in zip(texts, cut, slots, strict=True)]

    def _place(self, text: str, row: list[int], side: Side, slots: int) -> PreparedText:
        left, right = self._frame(side, slots)
        mask = self.vocabulary.mask_token_id
        assert mask is not None
        ids = np.array([*left, *row, *right, *[mask] * slots, *self.tail], np.int32)
        content_ids, variant_ids = self._content_words(text)
        return PreparedText(ids, slots, content_ids, variant_ids, len(row))

    def _text_limit(self, side: Side, slots: int) -> int:
        framing = sum(len(part) for part in self._frame(side, slots))
        limit = self._limit(side) - (framing if self.text.length_semantics == "total" else 0)
        room = self.vocabulary.max_length - framing - slots - len(self.tail)
        spread = _SPREAD_MARGIN + _SPREAD_STEP * (slots - 1)
        if self.config.slot_positions == "spread" and spread > self.vocabulary.max_length:
            raise ValueError(
                f"{slots} spread slots need {spread} positions, the model has {self.vocabulary.max_length}: "
                "take a smaller budget or natural slot positions"
            )
        if min(limit, room) < 1:
            raise ValueError(
                f"no room for the text: the prompt takes {framing} tokens, {slots} slots and {len(self.tail)} tail "
                f"tokens follow, the {side} limit is {self._limit(side)}, the model's {self.vocabulary.max_length}. "
                "Raise the limit, or take a smaller budget or a shorter prompt."
            )
        return min(limit, room)

    def _frame(self, side: Side, slots: int) -> tuple[list[int], list[int]]:
        key = (side, slots)
        if key not in self._frames:
            self._frames[key] = self._build_frame(side, slots)
        return self._frames[key]

    def _build_frame(self, side: Side, slots: int) -> tuple[list[int], list[int]]:
        tokenizer = self.vocabulary.tokenizer
        opening = tokenizer.cls_token or tokenizer.bos_token or ""
        if self.config.prompt.variant == "bare":
            left, right = opening, ""
        else:
            left, right = frame(build_prompt(self.config.prompt, side, slots), tokenizer, opening)
        # The two sides are tokenised apart from the text, so that no subword crosses its borders.
        return self._ids(left), self._ids(right)

    def _ids(self, text: str) -> list[int]:
        return list(self.vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _tail(vocabulary: Vocabulary, length: int) -> list[int]:
    """Closing quote, turn end, end of sequence (paper Eq. 1); what a vocabulary lacks is left to the last of them."""
    end = vocabulary.eos_token_id
    if length == 0 or end is None:
        return []
    if length == 1:
        return [end]
    quote = vocabulary.tokenizer('"', add_special_tokens=False)["input_ids"]
    turn_end = vocabulary.turn_end_id
    tail = list(quote) if len(quote) == 1 else []
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

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """One forward pass for all slots of all texts; logits of content ids only."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.pad_token_id)
        positions_BK, valid_BK = self._slot_positions(texts)
        content_BT, content_mask_BT = pad_right([text.content_ids for text in texts], 0)
        gathered = content_BT
        if self.config.content_words.fold_space_variants:
            gathered = torch.cat([content_BT, pad_right([text.variant_ids for text in texts], 0)[0]], dim=1)
        with torch.inference_mode():
            hidden_BKH, logits_BKT = self.backbone.forward(
                ids_BL, mask_BL, positions_BK, gathered, position_ids=self._position_ids(texts, mask_BL)
            )
            vectors_MH = unit_float16(hidden_BKH.cpu()[valid_BK])
            logits_BKT = logits_BKT.float().cpu()
        if gathered is not content_BT:
            logits_BKT = torch.maximum(*logits_BKT.chunk(2, dim=-1))
        impacts = self._impacts(content_BT, content_mask_BT.bool(), logits_BKT, valid_BK)
        return Representations(
            vectors_MH=vectors_MH,
            offsets=offsets_of([text.slots for text in texts]),
            slot_tokens=_slot_tokens(content_BT, content_mask_BT.bool(), logits_BKT)[valid_BK].numpy(),
            impact_ids=impacts[0],
            impact_weights=impacts[1],
            impact_offsets=impacts[2],
            n_tokens=np.array([text.n_tokens for text in texts], np.int32),
        )

    def _slot_positions(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions read, int64 [B, K], and which of them are slots of the text, bool [B, K]."""
        slots_B = torch.tensor([text.slots for text in texts])
        first_B = torch.tensor([len(text.input_ids) for text in texts]) - slots_B - len(self.preparer.tail)
        index_K = torch.arange(int(slots_B.max()))
        valid_BK = index_K[None, :] < slots_B[:, None]
        positions_BK = first_B[:, None] + torch.where(valid_BK, index_K, 0) + self.config.read_offset
        return positions_BK.clamp(min=0), valid_BK

    def _position_ids(self, texts: Sequence[PreparedText], mask_BL: torch.Tensor) -> torch.Tensor | None:
        if self.config.slot_positions == "natural":
            return None
        ids_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
        for row, text in enumerate(texts):
            first = len(text.input_ids) - text.slots - len(self.preparer.tail)
            spread = self.backbone.max_length - _SPREAD_MARGIN - _SPREAD_STEP * torch.arange(text.slots)
            ids_BL[row, first + text.slots : len(text.input_ids)] -= text.slots
            ids_BL[row, first : first + text.slots] = spread
        return ids_BL

    def _impacts(
        self,
        content_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        logits_BKT: torch.Tensor,
        valid_BK: torch.Tensor,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Max-pooled log(1 + ReLU) over slots (paper Eq. 3), zeros left out: ids, weights, offsets."""
        pooled_BT = max_pool(log_relu(logits_BKT), valid_BK)
        weights_BT = quantise(pooled_BT.numpy(), self.config.sparse_rounding)
        keep_BT = (weights_BT > 0) & mask_BT.numpy()
        ids_BT, topk = content_BT.numpy().astype(np.int32), self.config.sparse_topk
        rows = [(ids[keep], weights[keep]) for ids, weights, keep in zip(ids_BT, weights_BT, keep_BT, strict=True)]
        if topk is not None:
            rows = [keep_topk(ids, weights, topk) for ids, weights in rows]
        return (
            np.concatenate([ids for ids, _ in rows]),
            np.concatenate([weights for _, weights in rows]),
            offsets_of([len(ids) for ids, _ in rows]),
        )


def _slot_tokens(content_BT: torch.Tensor, mask_BT: torch.Tensor, logits_BKT: torch.Tensor) -> torch.Tensor:
    """The content id each slot predicts most strongly, int32 [B, K]; -1 for a text without content words."""
    if content_BT.shape[1] == 0:
        return torch.full(logits_BKT.shape[:2], -1, dtype=torch.int32)
    best_BK = logits_BKT.masked_fill(~mask_BT[:, None, :], -torch.inf).argmax(-1)
    tokens_BK = content_BT.gather(1, best_BK)
    return torch.where(mask_BT.any(1)[:, None], tokens_BK, -1).int()
