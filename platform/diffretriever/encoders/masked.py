"""DiffRetriever: K mask slots after a retrieval prompt, encoded in one bidirectional pass (paper §3.2, Eq. 1) or more.

With several passes, each pass fills the slots with the highest confidence, and their tokens are input of the next
(paper App. A). Training uses the same code.

Legend: B texts of a batch, L padded length, K most slots of the batch, P columns read, or passes, G content ids whose
logits are gathered, H hidden size, M slots of all texts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, cast

import torch

from diffretriever.backbones.device import to_device
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.slot_layers import SlotLayers, split_into_parts
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PreparedText, PromptedPreparer
from diffretriever.encoders.readout import (
    SlotReadout,
    TextStates,
    TokenStates,
    content_ids,
    read_slots,
    represent_slots,
)
from diffretriever.schemas.retriever import BackboneRetriever, MaskedRetriever, Side
from diffretriever.vectors.representations import Representations

if TYPE_CHECKING:
    from diffretriever.backbones.vocabulary import Vocabulary

# Distance of spread slots from each other and from the end of the position table. On the embedded backbone, which was
# not trained on runs of masks, neighbouring slots at natural positions all have the same vector.
_SPREAD_STEP = 16
_SPREAD_MARGIN = 12
_SHOWN_CHARACTERS = 300
_LAST_TIME = 0.001
# The authors' epsilon in the logarithm of the entropy.
_TINY = 1e-10
# Slots whose probabilities are in memory in fp32 at a time: 0.6 GB for a vocabulary of 150,000.
_SLOTS_AT_ONCE = 1024


class MaskedPreparer(PromptedPreparer):
    """Frames a text as prompt, text, prompt, slots, tail (paper Eq. 1)."""

    config: MaskedRetriever

    def __init__(self, vocabulary: Vocabulary, config: MaskedRetriever) -> None:
        super().__init__(vocabulary, config)
        if vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill slots: use another method")
        self.tail = _tail(vocabulary, config.tail_length)

    def default_slots(self, side: Side) -> int:
        """Return K_q or K_p of the configured budget."""
        return self.config.budget.query if side == "query" else self.config.budget.passage

    def parts(self, text: str, side: Side, slots: int) -> list[str]:
        """See the base class."""
        if self.config.readout != "pooling":
            return []
        frame = self.frame(side, slots)
        spans = self.vocabulary.spans(text, frame.limit)
        left, length = len(frame.left), len(frame.left) + len(spans) + len(frame.right) + len(self.tail)
        mask_1L = torch.ones(1, length, dtype=torch.bool)
        parts_KL = split_into_parts(mask_1L, torch.tensor([slots]), slots)[0, :, left : left + len(spans)]
        parts = [list(compress(spans, part_L.tolist())) for part_L in parts_KL]
        # A part may consist of prompt tokens only.
        return [text[part[0][0] : part[-1][1]].strip() if part else "" for part in parts]

    def following(self, slots: int) -> list[int]:
        """Return slots and tail."""
        spread = _SPREAD_MARGIN + _SPREAD_STEP * (slots - 1)
        if self.config.slot_positions == "spread" and spread > self.vocabulary.max_length:
            raise ValueError(
                f"{slots} spread slots need {spread} positions, but the model has {self.vocabulary.max_length}: "
                "set a smaller budget or slot_positions: natural"
            )
        mask = self.vocabulary.mask_token_id
        assert mask is not None, "checked in __init__"
        return [*[mask] * slots, *self.tail]


def _tail(vocabulary: Vocabulary, length: int) -> list[int]:
    """Return closing quote, turn end, end of sequence (paper Eq. 1); the last one replaces missing tokens."""
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


class MaskedBatch(NamedTuple):
    """Sequences with slots, on the CPU."""

    ids_BL: torch.Tensor
    """int64, a mask token in every slot."""
    mask_BL: torch.Tensor
    """int64, 1 for tokens, 0 for padding."""
    position_ids_BL: torch.Tensor | None
    columns_BK: torch.Tensor
    """int64, the slots' columns in `ids_BL`; missing slots repeat the text's first one."""
    valid_BK: torch.Tensor
    """bool, True for slots that exist: the first ones of each text."""
    slots_BL: torch.Tensor
    """int64, index of the slot in its text from 0; -1 for other tokens."""


class MaskedEncoder(BackboneEncoder):
    """Encodes a text as the hidden states and the logits of content ids at its slots."""

    config: MaskedRetriever
    preparer: MaskedPreparer
    preparer_class = MaskedPreparer
    keeps_tokens = False
    """Whether `forward` also returns the states of the text's tokens."""

    @classmethod
    def load(cls, config: BackboneRetriever, device: str) -> Self:
        """See the base class; an adapter on slots is not merged."""
        backbone, on_slots = config.backbone, cast("MaskedRetriever", config).adapter_on == "slots"
        if on_slots:
            # Packed texts can run before their slots, without the adapter: much faster, with or without a GPU.
            attention = "packed" if backbone.attention == "auto" else backbone.attention
            backbone = backbone.model_copy(update={"merge_adapter": False, "attention": attention})
            config = config.model_copy(update={"backbone": backbone})
        encoder = super().load(config, device)
        if on_slots:
            encoder.backbone.adapt_slots_only()
        return encoder

    def encode_batch(self, texts: Sequence[PreparedText]) -> SlotReadout:
        """Encode one batch in the configured number of passes. `stop_truncation` drops slots after a stop token.

        Raises:
            ValueError: Logits are not finite, so tokens cannot be predicted.
        """
        return self.encode_budgets(texts, ())[0]

    def represent(self, texts: Sequence[PreparedText], computed: SlotReadout) -> Representations:
        """See the base class."""
        return represent_slots(texts, self.config, computed)

    def encode_budgets(self, texts: Sequence[PreparedText], budgets: Sequence[int]) -> list[SlotReadout]:
        """See the base class."""
        assert self.config.nested_slots or not budgets, "other slots depend on the number of slots"
        readouts = []
        with torch.inference_mode():
            states = self._states(texts)
            index_K = torch.arange(states.valid_BK.shape[1])
            for budget in budgets or [len(index_K)]:
                first_slots = states._replace(valid_BK=states.valid_BK & (index_K < budget))
                readouts.append(read_slots(self._pooled(first_slots)))
        return readouts

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """See the base class. Each slot's states are from the pass that fills it.

        Only a text's last pass has gradients: earlier passes are constants in the loss (paper App. A.1).

        Raises:
            ValueError: Logits are not finite, so tokens cannot be predicted.
        """
        return self._pooled(self._states(texts))

    def _pooled(self, states: TextStates) -> TextStates:
        if self.config.readout == "states":
            return states
        assert states.tokens is not None, "pooling reads the text's states"
        layers, is_text_BL = self.backbone.slot_layers or SlotLayers(), states.tokens.is_text_BL
        slots_B = to_device(states.valid_BK.sum(1), is_text_BL.device)
        parts_BKL = split_into_parts(is_text_BL, slots_B, states.valid_BK.shape[1])
        return states._replace(hidden_BKH=layers.vectors(states.hidden_BKH, *states.tokens, parts_BKL))

    def _states(self, texts: Sequence[PreparedText]) -> TextStates:
        # A slot's state is that of the pass that fills it, in which its input is still a mask.
        content = content_ids(texts, self.config, self.backbone.slot_layers)
        batch = self.masked_batch(texts)
        counts_BP = reveal_counts(batch.valid_BK.sum(1), self.config.steps, self.config.schedule)
        passes, truncates = counts_BP.shape[1], self.config.stop_truncation != "none"
        masked_BK, hidden_BKH, logits_BKG, tokens = batch.valid_BK, None, None, None
        for step, counts_B in enumerate(counts_BP.unbind(1), start=1):
            is_last_pass_B = (counts_B > 0) & (counts_B == masked_BK.sum(1))
            predicts = truncates or step < passes
            with torch.set_grad_enabled(torch.is_grad_enabled() and bool(is_last_pass_B.any())):
                read_BKH, read_BKX, tokens = self._read(batch, None if predicts else content.gathered_BG)
            revealed_BK = masked_BK
            if step < passes:
                confidence_BK = confidences(read_BKX.detach()).cpu()
                revealed_BK = choose(confidence_BK, masked_BK, counts_B)
            if predicts:
                predicted_BK, finite_BK = predict(read_BKX.detach())
                self._check_finite(batch, masked_BK & ~finite_BK.cpu())
                index_BKG = to_device(content.gathered_BG[:, None].expand(-1, masked_BK.shape[1], -1), read_BKX.device)
                read_BKX = read_BKX.gather(-1, index_BKG)
                row_M, slot_M = revealed_BK.nonzero(as_tuple=True)
                ids_BL = batch.ids_BL.clone()
                ids_BL[row_M, batch.columns_BK[row_M, slot_M]] = predicted_BK.cpu()[row_M, slot_M]
                batch = batch._replace(ids_BL=ids_BL)
            if passes > 1:
                has_gradient_BK1 = to_device(is_last_pass_B[:, None, None], read_BKX.device)
                is_filled_BK1 = to_device(revealed_BK[..., None], read_BKX.device)
                hidden_BKH = _update_revealed(read_BKH, hidden_BKH, has_gradient_BK1, is_filled_BK1)
                logits_BKG = _update_revealed(read_BKX, logits_BKG, has_gradient_BK1, is_filled_BK1)
            else:
                hidden_BKH, logits_BKG = read_BKH, read_BKX
            masked_BK = masked_BK & ~revealed_BK
        assert hidden_BKH is not None, "there is a pass"
        valid_BK = batch.valid_BK
        if truncates:
            valid_BK = before_stop(batch.ids_BL.gather(1, batch.columns_BK), valid_BK, self._stop_ids)
        return TextStates(hidden_BKH, valid_BK, content, logits_BKG, tokens)

    def _read(
        self, batch: MaskedBatch, gathered_BG: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, TokenStates | None]:
        """Return the slots' states and logits in one pass; logits of the whole vocabulary if `gathered_BG` is None."""
        columns_BP = (batch.columns_BK + self.config.read_offset).clamp(min=0)
        slots, reads_text = columns_BP.shape[1], self.keeps_tokens or self.config.readout != "states"
        if reads_text:
            all_BL = torch.arange(batch.ids_BL.shape[1]).expand(batch.ids_BL.shape)
            columns_BP = torch.cat([columns_BP, all_BL], dim=1)
        hidden_BPH, logits_BKX = self.backbone.forward(
            batch.ids_BL,
            batch.mask_BL,
            columns_BP,
            gathered_BG,
            position_ids=batch.position_ids_BL,
            slots=batch.slots_BL,
            nested=self.config.nested_slots,
            logits_of_first=slots,
        )
        if not reads_text:
            return hidden_BPH, logits_BKX, None
        is_text_BL = to_device(batch.mask_BL.bool() & (batch.slots_BL < 0), hidden_BPH.device)
        return hidden_BPH[:, :slots], logits_BKX, TokenStates(hidden_BPH[:, slots:], is_text_BL)

    def _check_finite(self, batch: MaskedBatch, broken_BK: torch.Tensor) -> None:
        if not broken_BK.any():
            return
        row = int(broken_BK.any(1).nonzero()[0])
        text = self.backbone.vocabulary.tokenizer.decode(batch.ids_BL[row][batch.mask_BL[row].bool()])
        raise ValueError(
            f"the model's logits are not finite numbers for the text that begins {text[:_SHOWN_CHARACTERS]!r}: the "
            f"weights are damaged, or overflow in {self.backbone.dtype}: check the checkpoint, or set the retriever's "
            "backbone.dtype to bfloat16 or float32"
        )

    @cached_property
    def _stop_ids(self) -> torch.Tensor:
        vocabulary = self.preparer.vocabulary
        return torch.tensor(sorted(set(vocabulary.tokenizer.all_special_ids) - {vocabulary.mask_token_id}))

    def masked_batch(self, texts: Sequence[PreparedText]) -> MaskedBatch:
        """Return the padded sequences of `texts` and the positions of their slots."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.vocabulary.pad_token_id)
        slots_B = torch.tensor([text.slots for text in texts])
        first_B = mask_BL.sum(1) - slots_B - len(self.preparer.tail)
        index_K = torch.arange(int(slots_B.max()))
        valid_BK = index_K < slots_B[:, None]
        columns_BK = first_B[:, None] + torch.where(valid_BK, index_K, 0)
        index_BL = torch.arange(mask_BL.shape[1]) - first_B[:, None]
        slots_BL = torch.where(index_BL < slots_B[:, None], index_BL, -1).clamp(min=-1)
        position_ids_BL = None
        if self.config.slot_positions == "spread":
            # Slots do not shift the positions of the tokens after them.
            natural_BL = (mask_BL.bool() & (slots_BL < 0)).cumsum(1) - 1
            spread_BL = self.backbone.max_length - _SPREAD_MARGIN - _SPREAD_STEP * slots_BL
            position_ids_BL = torch.where(slots_BL >= 0, spread_BL, natural_BL).clamp(min=0)
        return MaskedBatch(ids_BL, mask_BL, position_ids_BL, columns_BK, valid_BK, slots_BL)


def _update_revealed(
    read_BKX: torch.Tensor,
    earlier_BKX: torch.Tensor | None,
    has_gradient_BK1: torch.Tensor,
    is_filled_BK1: torch.Tensor,
) -> torch.Tensor:
    """Replace earlier values by a pass's values in the slots that it fills; only `has_gradient_BK1` keeps gradients."""
    read_BKX = torch.where(has_gradient_BK1, read_BKX, read_BKX.detach())
    return read_BKX if earlier_BKX is None else torch.where(is_filled_BK1, read_BKX, earlier_BKX)


def reveal_counts(slots_B: torch.Tensor, steps: int, schedule: Literal["time-grid", "even"]) -> torch.Tensor:
    """Return the number of slots that each pass fills, int64 [B, P]; rows sum to `slots_B` (paper App. A.1).

    `time-grid` fills floor(n (1 - t_next / t)) of n masks, for times t from 1 to 0.001. `even` fills floor(K / S). Each
    pass fills at least one slot, so P = min(S, largest K). The last pass fills the rest.
    """
    # With K <= S, both schedules fill one slot per pass.
    steps = min(steps, int(slots_B.max()))
    times = torch.linspace(1, _LAST_TIME, steps + 1, dtype=torch.float64)
    counts = []
    left_B = slots_B
    for step in range(steps - 1):
        planned_B = slots_B // steps if schedule == "even" else (left_B * (1 - times[step + 1] / times[step])).long()
        counts.append(planned_B.clamp(min=1).minimum(left_B))
        left_B = left_B - counts[-1]
    return torch.stack([*counts, left_B], dim=1)


def predict(logits_BKV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each slot's token (ties: the smallest id), int64 [B, K], and whether its logits are finite, bool."""
    low_BK, high_BK = logits_BKV.aminmax(dim=-1)
    return logits_BKV.argmax(-1), low_BK.isfinite() & high_BK.isfinite()


def confidences(logits_BKV: torch.Tensor) -> torch.Tensor:
    """Return the confidence of each slot, float32 [B, K]: its negative entropy in nats."""
    confidences_of_parts = []
    for part_MV in logits_BKV.flatten(0, 1).split(_SLOTS_AT_ONCE):
        probabilities_MV = part_MV.softmax(-1, dtype=torch.float32)
        confidences_of_parts.append((probabilities_MV * (probabilities_MV + _TINY).log_()).sum(-1))
    return torch.cat(confidences_of_parts).view(logits_BKV.shape[:2])


def choose(confidences_BK: torch.Tensor, masked_BK: torch.Tensor, count_B: torch.Tensor) -> torch.Tensor:
    """Select the `count_B` masked slots of highest confidence in each text, bool [B, K]. Ties keep the earlier slot."""
    open_BK = confidences_BK.masked_fill(~masked_BK, -torch.inf)
    order_BK = open_BK.argsort(dim=1, descending=True, stable=True)
    first_BK = torch.arange(masked_BK.shape[1]) < count_B[:, None]
    return torch.zeros_like(masked_BK).scatter(1, order_BK, first_BK)


def before_stop(tokens_BK: torch.Tensor, valid_BK: torch.Tensor, stop_ids: torch.Tensor) -> torch.Tensor:
    """Return the valid slots before a text's first stop token, bool [B, K]; all of them if the first slot stops."""
    stops_BK = torch.isin(tokens_BK, stop_ids)
    before_BK = stops_BK.cumsum(1) == 0
    return valid_BK & (before_BK | stops_BK[:, :1])
