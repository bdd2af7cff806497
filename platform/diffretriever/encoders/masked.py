"""DiffRetriever: K mask slots after a retrieval prompt, read in one bidirectional pass (paper §3.2, Eq. 1) or several.

Several passes fill the slots: each reads those that are masks, keeps the ones it is surest of, and writes their tokens
for the next (paper App. A). Training and encoding read slots by the same code.

Legend: B texts of a batch, L padded length, K most slots of the batch, G content ids whose logits are read, H hidden
size, V vocabulary, M slots of all texts, X either of H and G; of a pass R texts that have masks left, P slots looked
at. Of a schedule P are the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeAlias, cast

import numpy as np
import torch

from diffretriever.backbones.base import pad_right
from diffretriever.backbones.device import FLOAT8, moved
from diffretriever.backbones.slot_layers import SlotLayers, parts_of
from diffretriever.encoders.base import BackboneEncoder, Encoded, TextStates, TokenStates
from diffretriever.encoders.preparer import Following, PreparedText, PromptedPreparer
from diffretriever.encoders.readout import SlotReadout, content_ids, read_slots, represent
from diffretriever.representations import Representations
from diffretriever.schemas.retriever import BackboneRetriever, MaskedRetriever, Readout, Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary

Schedule: TypeAlias = Literal["time-grid", "even"]
Confidence: TypeAlias = Literal["entropy", "max-probability"]

# Spread slots lie this far apart and from the end of the position table. Measured on the embedded backbone, which
# never saw a run of masks: neighbouring slots at natural positions all give the same vector.
_SPREAD_STEP = 16
_SPREAD_MARGIN = 12
_LAST_TIME = 0.001
# The matrices that an adapter has for each readout, by the names of `SlotLayers`.
_MATRICES: dict[Readout, set[str]] = {
    "states": set(),
    "residual": {"residual"},
    "pooling": {"residual", "attention"},
}
# The authors' addend in the logarithm of the entropy, so that a probability of zero counts nothing.
_TINY = 1e-10
# Slots whose probabilities are held in fp32 at a time: 0.6 GB for a vocabulary of 150,000.
_SLOTS_AT_ONCE = 1024
_SHOWN_CHARACTERS = 300


class MaskedPreparer(PromptedPreparer):
    """Prompt, text, prompt, slots, tail (paper Eq. 1)."""

    config: MaskedRetriever

    def __init__(self, vocabulary: Vocabulary, config: MaskedRetriever) -> None:
        super().__init__(vocabulary, config)
        if vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill slots: choose another method")
        self.tail = _tail(vocabulary, config.tail_length)

    def default_slots(self, side: Side) -> int:
        """K_q or K_p of the configured budget."""
        return self.config.budget.query if side == "query" else self.config.budget.passage

    def parts(self, text: str, side: Side, slots: int) -> list[str]:
        """See the base class."""
        if self.config.slot_view != "part":
            return []
        left, right = self.frame_ids(side, slots)
        spans = self.vocabulary.spans(text, self._text_limit(side, slots))
        own_1L = torch.ones(1, len(left) + len(spans) + len(right) + len(self.tail), dtype=torch.bool)
        view_KL = parts_of(own_1L, torch.tensor([slots]), slots)[0, :, len(left) : len(left) + len(spans)]
        return [_between(text, list(compress(spans, sees_L.tolist()))) for sees_L in view_KL]

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
        left, right = self.frame_ids(side, slots)
        mask = self.vocabulary.mask_token_id
        assert mask is not None
        ids = np.array([*left, *row, *right, *[mask] * slots, *self.tail], np.int32)
        own_ids, variant_ids = self._content_words(text)
        return PreparedText(ids, slots, own_ids, variant_ids, len(row))


def _between(text: str, spans: list[tuple[int, int]]) -> str:
    """Return what neighbouring tokens cover; empty for none, as in the part of a prompt."""
    return text[spans[0][0] : spans[-1][1]].strip() if spans else ""


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
    keeps_tokens = False
    """Whether `forward` gives the states of the text's tokens as well."""

    @classmethod
    def make_preparer(cls, config: MaskedRetriever, vocabulary: Vocabulary) -> MaskedPreparer:
        """Return the preparer that puts slots after the prompt."""
        return MaskedPreparer(vocabulary, config)

    @classmethod
    def load(cls, config: BackboneRetriever, device: str) -> Self:
        """Load as every encoder over a backbone.

        Raises:
            ValueError: the adapter has vectors for fewer slots than the budget asks for, was trained with another
                readout, or would have to be added into weights of 8 bits.
        """
        on_slots = cast("MaskedRetriever", config).adapter_on == "slots"
        if on_slots:
            if config.backbone.dtype == FLOAT8:
                raise ValueError(
                    "dtype 'float8' does not go with adapter_on: slots, whose adapter is never added into the weights: "
                    "take bfloat16"
                )
            # Texts without pads can run before their slots, by the weights alone: much faster, with or without a GPU.
            attention = "packed" if config.backbone.attention == "auto" else config.backbone.attention
            place = config.backbone.model_copy(update={"merge_adapter": False, "attention": attention})
            config = config.model_copy(update={"backbone": place})
        encoder = super().load(config, device)
        if on_slots:
            encoder.backbone.adapt_slots_only()
        layers = encoder.backbone.slot_layers
        readout = encoder.config.readout
        matrices = _MATRICES["pooling"] & {*({} if layers is None else layers.tensors())}
        if config.backbone.adapter is not None and matrices != _MATRICES[readout]:
            trained = next(name for name, own in _MATRICES.items() if own == matrices)
            raise ValueError(
                f"readout: {readout}, but the adapter {config.backbone.adapter} was trained with another one: set "
                f"readout to {trained}, or take another adapter"
            )
        budget = encoder.config.budget
        if layers is not None and layers.slots is not None and layers.slots < max(budget.query, budget.passage):
            raise ValueError(
                f"budget {budget}: the adapter {config.backbone.adapter} was trained with vectors for "
                f"{layers.slots} slots; take a budget up to that"
            )
        return encoder

    def begin_batch(self, texts: Sequence[PreparedText]) -> Callable[[], Representations]:
        """Begin with one batch: one forward pass, or S of them; slots that come after a stop are left out if asked.

        Raises:
            ValueError: a logit that decides on tokens is not a finite number.
        """
        with torch.inference_mode():
            slots = _read_out(self.forward(texts))
        return lambda: represent(texts, self.config, slots, slots.valid_BK)

    def launch_cut(self, texts: Sequence[PreparedText], budgets: Sequence[int]) -> Callable[[], Encoded]:
        """Begin as `launch` does, once for several budgets of nested slots: for each, texts have their first slots.

        Args:
            texts: prepared with the largest budget.
            budgets: numbers of slots to keep; a text that has fewer keeps those.

        Returns:
            What waits, and returns for each of `budgets` what encoding with that budget gives, up to the rounding of
            sums.
        """
        assert self.config.nested_slots, "other slots depend on the number of slots"
        return self._in_batches(texts, lambda batch: self._begin_cut(batch, budgets), len(budgets))

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return each slot's states from the pass that fills it; see the base class.

        A text's last pass alone has gradients: what earlier ones have read is constant in the loss (paper App. A.1).

        Raises:
            ValueError: a logit that decides on tokens is not a finite number.
        """
        return self._with_vectors(self._states(texts))

    def _states(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return the slots' own states, whatever the readout makes of them, and what else the passes read."""
        content = content_ids(texts, self.config, self.backbone.slot_layers)
        batch = self.masked_batch(texts, content.gathered_BG)
        filled = self._fill_slots(batch)
        valid_BK = batch.valid_BK
        if filled.tokens_BK is not None:
            valid_BK = before_stop(filled.tokens_BK, valid_BK, self._stop_ids)
        return TextStates(filled.hidden_BKH, valid_BK, content, filled.logits_BKG, filled.tokens)

    def _with_vectors(self, states: TextStates) -> TextStates:
        """Return the states with what the readout makes of the slots in their place."""
        if self.config.readout == "states":
            return states
        assert states.tokens is not None, "readouts read the text's states"
        layers, view_BKL = self.backbone.slot_layers or SlotLayers(), None
        if self.config.slot_view == "part":
            slots_B = moved(states.valid_BK.sum(1), states.hidden_BKH.device)
            view_BKL = parts_of(states.tokens.own_BL, slots_B, states.valid_BK.shape[1])
        return states._replace(hidden_BKH=layers.vectors(states.hidden_BKH, *states.tokens, view_BKL))

    def _begin_cut(self, texts: Sequence[PreparedText], budgets: Sequence[int]) -> Callable[[], list[Representations]]:
        with torch.inference_mode():
            states = self._states(texts)
            index_K = torch.arange(states.valid_BK.shape[1])
            cuts = [states.valid_BK & (index_K < budget) for budget in budgets]
            if self.config.slot_view == "part":
                # What a slot sees depends on how many there are.
                read = [_read_out(self._with_vectors(states._replace(valid_BK=kept_BK))) for kept_BK in cuts]
            else:
                read = [_read_out(self._with_vectors(states))] * len(cuts)
        return lambda: [represent(texts, self.config, *each) for each in zip(read, cuts, strict=True)]

    def _fill_slots(self, batch: MaskedBatch) -> _Filled:
        """Read every slot in the pass that fills it, while it is still a mask.

        A pass before the last fills the slots it is surest of. Texts without masks left drop out.

        Raises:
            ValueError: a logit that decides on tokens is not a finite number.
        """
        counts_BP = reveal_counts(batch.valid_BK.sum(1), self.config.steps, self.config.schedule)
        if counts_BP.shape[1] == 1:
            passed = self._pass(batch, batch.columns_BK, is_last=True)
            return _Filled(passed.hidden_RPH, passed.logits_RPG, passed.tokens_RP, passed.tokens)
        batch = batch._replace(ids_BL=batch.ids_BL.clone())
        masked_BK = batch.valid_BK.clone()
        hidden_BKH = torch.zeros(*masked_BK.shape, self.backbone.hidden_size, device=self.backbone.device)
        logits_BKG = torch.zeros(*masked_BK.shape, batch.gathered_BG.shape[1], device=self.backbone.device)
        for count_B in counts_BP.unbind(1):
            rows_R = count_B.nonzero().squeeze(1)
            slots_RP, masked_RP = still_masked(masked_BK[rows_R])
            ends_R = count_B[rows_R] == masked_RP.sum(1)
            rows = batch.take(rows_R)
            with torch.set_grad_enabled(torch.is_grad_enabled() and bool(ends_R.any())):
                passed = self._pass(rows, rows.columns_BK.gather(1, slots_RP), is_last=bool(ends_R.all()))
            chosen_RP = masked_RP
            if passed.confidences_RP is not None:
                chosen_RP = choose(passed.confidences_RP, masked_RP, count_B[rows_R])
            row_M, slot_M = rows_R[:, None].expand_as(slots_RP)[chosen_RP], slots_RP[chosen_RP]
            ends_M = ends_R[:, None].expand_as(slots_RP)[chosen_RP]
            hidden_BKH[row_M, slot_M] = constant_unless(ends_M, passed.hidden_RPH[chosen_RP].float())
            logits_BKG[row_M, slot_M] = constant_unless(ends_M, passed.logits_RPG[chosen_RP].float())
            masked_BK[row_M, slot_M] = False
            if passed.tokens_RP is not None:
                batch.ids_BL[row_M, batch.columns_BK[row_M, slot_M]] = passed.tokens_RP[chosen_RP]
        tokens_BK = batch.ids_BL.gather(1, batch.columns_BK) if self._cuts_at_stops else None
        return _Filled(hidden_BKH, logits_BKG, tokens_BK, None)

    def _pass(self, batch: MaskedBatch, columns_RP: torch.Tensor, *, is_last: bool) -> _Pass:
        """Run the model once; logits of the whole vocabulary only if tokens are asked for."""
        predicting = not is_last or self._cuts_at_stops
        hidden_RPH, logits, tokens = self._read_columns(batch, columns_RP, None if predicting else batch.gathered_BG)
        if not predicting:
            return _Pass(hidden_RPH, logits, None, None, tokens)
        tokens_RP, finite_RP = predict(logits.detach())
        self._check_finite(batch, finite_RP.cpu())
        surest_RP = None if is_last else confidences(logits.detach(), self.config.confidence).cpu()
        index_RPG = batch.gathered_BG[:, None, :].expand(-1, columns_RP.shape[1], -1)
        return _Pass(hidden_RPH, logits.gather(-1, index_RPG.to(logits.device)), tokens_RP.cpu(), surest_RP, tokens)

    @property
    def _cuts_at_stops(self) -> bool:
        return self.config.stop_truncation != "none"

    def _read_columns(
        self, batch: MaskedBatch, columns_BP: torch.Tensor, gathered_BG: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, TokenStates | None]:
        """Run the model once, and return states [B, P, H] and logits [B, P, G] at slots, on the device.

        `gathered_BG` None: logits of the whole vocabulary. The states of the text's tokens come along where they were
        read. Gradients flow unless the caller forbids them.
        """
        columns_BP = (columns_BP + self.config.read_offset).clamp(min=0)
        slots, length = columns_BP.shape[1], batch.ids_BL.shape[1]
        reads_text = self.keeps_tokens or self.config.readout != "states"
        if reads_text:
            columns_BP = torch.cat([columns_BP, torch.arange(length).expand(batch.ids_BL.shape)], dim=1)
        hidden_BPH, logits = self.backbone.forward(
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
            return hidden_BPH, logits, None
        own_BL = moved(batch.mask_BL.bool() & (batch.slots_BL < 0), hidden_BPH.device)
        return hidden_BPH[:, :slots], logits, TokenStates(hidden_BPH[:, slots:], own_BL)

    def _check_finite(self, batch: MaskedBatch, finite_RP: torch.Tensor) -> None:
        broken_R = (~finite_RP).any(1)
        if not broken_R.any():
            return
        row = int(broken_R.nonzero()[0])
        text = self.backbone.vocabulary.tokenizer.decode(batch.ids_BL[row][batch.mask_BL[row].bool()])
        raise ValueError(
            f"the model's logits are not finite numbers, so no slot can be filled, in the text that begins "
            f"{text[:_SHOWN_CHARACTERS]!r}: the weights are broken, or overflow in {self.backbone.dtype}. "
            "Check the checkpoint, or set the retriever's backbone.dtype to bfloat16 or float32."
        )

    @cached_property
    def _stop_ids(self) -> torch.Tensor:
        """The stop set that the config names, int64."""
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


class MaskedBatch(NamedTuple):
    """Sequences with slots, on the CPU."""

    ids_BL: torch.Tensor
    """int64, a mask token in every slot."""
    mask_BL: torch.Tensor
    """int64, 1 for a token, 0 for a pad."""
    position_ids_BL: torch.Tensor | None
    columns_BK: torch.Tensor
    """int64, where in `ids_BL` a slot is; for slots that the text does not have, where its first one is."""
    valid_BK: torch.Tensor
    """bool, the slots that a text has: its first ones."""
    gathered_BG: torch.Tensor
    """int64, the ids whose logits are read."""
    slots_BL: torch.Tensor
    """int64, which slot of its text a token is, from 0 on; -1 for one that is no slot."""

    def take(self, rows_R: torch.Tensor) -> MaskedBatch:
        """Return the batch of the texts `rows_R`."""
        return MaskedBatch(
            self.ids_BL[rows_R],
            self.mask_BL[rows_R],
            None if self.position_ids_BL is None else self.position_ids_BL[rows_R],
            self.columns_BK[rows_R],
            self.valid_BK[rows_R],
            self.gathered_BG[rows_R],
            self.slots_BL[rows_R],
        )


class _Pass(NamedTuple):
    """What one pass reads."""

    hidden_RPH: torch.Tensor
    """floating, on the device."""
    logits_RPG: torch.Tensor
    """floating, on the device, of `gathered_BG`."""
    tokens_RP: torch.Tensor | None
    """int64 on the CPU, None if nobody asks for them."""
    confidences_RP: torch.Tensor | None
    """float32 on the CPU, None in the last pass, which fills all that is left."""
    tokens: TokenStates | None


class _Filled(NamedTuple):
    """What all passes together read; anything for slots that a text does not have."""

    hidden_BKH: torch.Tensor
    """floating, on the device."""
    logits_BKG: torch.Tensor
    """floating, on the device, of `gathered_BG`."""
    tokens_BK: torch.Tensor | None
    """int64 on the CPU, the token of each slot; None where texts are not cut at stops."""
    tokens: TokenStates | None
    """Where one pass fills all slots."""


def _read_out(states: TextStates) -> SlotReadout:
    assert states.content is not None, "slots have sparse scores"
    assert states.logits_BKG is not None, "slots have sparse scores"
    return read_slots(states.hidden_BKH, states.valid_BK, states.content, states.logits_BKG)


def reveal_counts(slots_B: torch.Tensor, steps: int, schedule: Schedule) -> torch.Tensor:
    """Return how many slots each pass fills, int64 [B, P]; rows sum to `slots_B` (paper App. A.1).

    A pass fills at least one slot, so a text of K < S slots is done after K passes: zeros follow, and P is the
    smaller of S and the largest K.

    Args:
        slots_B: int64, K of each text, at least 1.
        steps: S, at least 1.
        schedule: `time-grid` goes by the times t = 1 … 0.001: of n masks, floor(n (1 - t_next / t)) are filled.
            `even` fills floor(K / S) in each pass. The last pass fills the rest.
    """
    # With fewer slots than passes both schedules fill one slot a pass, whatever S.
    steps = min(steps, int(slots_B.max()))
    times = torch.linspace(1, _LAST_TIME, steps + 1, dtype=torch.float64)
    counts = []
    left_B = slots_B
    for step in range(steps - 1):
        planned_B = slots_B // steps if schedule == "even" else (left_B * (1 - times[step + 1] / times[step])).long()
        counts.append(planned_B.clamp(min=1).minimum(left_B))
        left_B = left_B - counts[-1]
    return torch.stack([*counts, left_B], dim=1)


def still_masked(masked_BK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the slots to look at, int64 [B, P], in slot order, and which of them are masked, bool [B, P].

    P is the largest number of masked slots of a text. Texts with fewer of them get others to make up the number.

    Args:
        masked_BK: bool.
    """
    most = int(masked_BK.sum(1).max())
    slots_BP = masked_BK.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return slots_BP, masked_BK.gather(1, slots_BP)


def predict(logits_BKV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each slot's token, int64 [B, K], and whether all its logits are finite numbers, bool [B, K].

    The token is the one with the largest logit, of equal ones the smallest id.
    """
    low_BK, high_BK = logits_BKV.aminmax(dim=-1)
    return logits_BKV.argmax(-1), low_BK.isfinite() & high_BK.isfinite()


def confidences(logits_BKV: torch.Tensor, kind: Confidence) -> torch.Tensor:
    """Return how sure the model is of each slot, float32 [B, K] on the logits' device: larger is surer.

    Args:
        logits_BKV: floating.
        kind: `entropy` is the negative entropy in nats, `max-probability` the largest probability.
    """
    parts = logits_BKV.flatten(0, 1).split(_SLOTS_AT_ONCE)
    return torch.cat([_confidences(part_MV, kind) for part_MV in parts]).view(logits_BKV.shape[:2])


def _confidences(logits_MV: torch.Tensor, kind: Confidence) -> torch.Tensor:
    probabilities_MV = logits_MV.softmax(-1, dtype=torch.float32)
    if kind == "max-probability":
        return probabilities_MV.amax(-1)
    return (probabilities_MV * (probabilities_MV + _TINY).log_()).sum(-1)


def choose(confidences_BK: torch.Tensor, masked_BK: torch.Tensor, count_B: torch.Tensor) -> torch.Tensor:
    """Return the `count_B` most confident of each text's masked slots, bool [B, K]; ties go to the earlier slot."""
    open_BK = confidences_BK.masked_fill(~masked_BK, -torch.inf)
    order_BK = open_BK.argsort(dim=1, descending=True, stable=True)
    wanted_BK = torch.arange(masked_BK.shape[1]) < count_B[:, None]
    return torch.zeros_like(masked_BK).scatter(1, order_BK, wanted_BK)


def constant_unless(keeps_M: torch.Tensor, values_MX: torch.Tensor) -> torch.Tensor:
    """Return the values, of which gradients reach those alone whose `keeps_M`, bool, is true."""
    return torch.where(keeps_M[:, None].to(values_MX.device), values_MX, values_MX.detach())


def before_stop(tokens_BK: torch.Tensor, valid_BK: torch.Tensor, stop_ids: torch.Tensor) -> torch.Tensor:
    """Return the slots before a text's first stop token, bool [B, K].

    A text whose very first slot stops keeps all its slots: it would have none.

    Args:
        tokens_BK: int64, the token of each slot.
        valid_BK: bool, the slots that a text has: its first ones.
        stop_ids: int64, in any order.
    """
    stops_BK = torch.isin(tokens_BK, stop_ids)
    before_BK = stops_BK.cumsum(1) == 0
    return valid_BK & (before_BK | stops_BK[:, :1])
