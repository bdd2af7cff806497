"""Forward passes over sequences with mask slots: one in which all are read, or several that fill them (paper App. A).

Legend: B texts of a batch, L padded length, K most slots of the batch, G content ids whose logits are read, H hidden
size, V vocabulary; in a pass R texts that have masks left, P most masks among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from diffretriever.encoders.unmasking import choose, confidences, predict, reveal_counts, still_masked
from schemas.retriever import MaskedRetriever

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone

_SHOWN_CHARACTERS = 300


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


class SlotReadings(NamedTuple):
    """What slots say, on the CPU; zeros for slots that a text does not have."""

    hidden_BKH: torch.Tensor
    """float32."""
    logits_BKG: torch.Tensor
    """float32, of the ids `gathered_BG`."""
    tokens_BK: torch.Tensor
    """int64, what was written into the slots. With stop truncation that is each slot's token; else the slots of the
    last pass still hold the mask, for nobody asks what they would be."""


class _Pass(NamedTuple):
    """What one pass reads, on the CPU."""

    hidden_RPH: torch.Tensor
    """float32."""
    logits_RPG: torch.Tensor
    """float32."""
    tokens_RP: torch.Tensor | None
    """int64, None if nobody asks for them."""
    confidences_RP: torch.Tensor | None
    """float32, None in the last pass, which fills all that is left."""


class SlotReader:
    """Reads slots as a config says: passes, their schedule, and the position read for a slot."""

    def __init__(self, backbone: Backbone, config: MaskedRetriever) -> None:
        self.backbone = backbone
        self.config = config

    @torch.inference_mode()
    def read(self, batch: MaskedBatch) -> SlotReadings:
        """Read every slot in the pass that fills it, while it is still a mask.

        A pass before the last fills the slots it is surest of. Texts without masks left drop out.

        Raises:
            ValueError: a logit that decides on tokens is not a finite number.
        """
        batch = batch._replace(ids_BL=batch.ids_BL.clone())
        masked_BK = batch.valid_BK.clone()
        hidden_BKH = torch.zeros(*masked_BK.shape, self.backbone.hidden_size)
        logits_BKG = torch.zeros(*masked_BK.shape, batch.gathered_BG.shape[1])
        for count_B in reveal_counts(masked_BK.sum(1), self.config.steps, self.config.schedule).unbind(1):
            rows_R = count_B.nonzero().squeeze(1)
            slots_RP, masked_RP = still_masked(masked_BK[rows_R])
            is_last = torch.equal(count_B, masked_BK.sum(1))
            passed = self._pass(batch.take(rows_R), slots_RP, is_last=is_last)
            chosen_RP = masked_RP
            if passed.confidences_RP is not None:
                chosen_RP = choose(passed.confidences_RP, masked_RP, count_B[rows_R])
            row_M, slot_M = rows_R[:, None].expand_as(slots_RP)[chosen_RP], slots_RP[chosen_RP]
            hidden_BKH[row_M, slot_M] = passed.hidden_RPH[chosen_RP]
            logits_BKG[row_M, slot_M] = passed.logits_RPG[chosen_RP]
            masked_BK[row_M, slot_M] = False
            if passed.tokens_RP is not None:
                batch.ids_BL[row_M, batch.columns_BK[row_M, slot_M]] = passed.tokens_RP[chosen_RP]
        return SlotReadings(hidden_BKH, logits_BKG, batch.ids_BL.gather(1, batch.columns_BK))

    def _pass(self, batch: MaskedBatch, slots_RP: torch.Tensor, *, is_last: bool) -> _Pass:
        """Run the model once; logits of the whole vocabulary only if tokens are asked for."""
        predicting = not is_last or self.config.stop_truncation != "none"
        positions_RP = batch.columns_BK.gather(1, slots_RP) + self.config.read_offset
        hidden_RPH, logits = self.backbone.forward(
            batch.ids_BL,
            batch.mask_BL,
            positions_RP.clamp(min=0),
            None if predicting else batch.gathered_BG,
            position_ids=batch.position_ids_BL,
            slots=batch.slots_BL,
            nested=self.config.nested_slots,
        )
        if not predicting:
            return _Pass(hidden_RPH.cpu().float(), logits.cpu().float(), None, None)
        tokens_RP, finite_RP = predict(logits)
        self._check_finite(batch, finite_RP.cpu())
        surest_RP = None if is_last else confidences(logits, self.config.confidence).cpu()
        index_RPG = batch.gathered_BG[:, None, :].expand(-1, slots_RP.shape[1], -1)
        logits_RPG = logits.gather(-1, index_RPG.to(logits.device))
        return _Pass(hidden_RPH.cpu().float(), logits_RPG.cpu().float(), tokens_RP.cpu(), surest_RP)

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
