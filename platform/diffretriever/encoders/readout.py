"""Turns the states and logits of a pass into representations: unit vectors and impacts (paper Eq. 3).

Legend: B texts of a batch, L padded length, K most slots of the batch, H hidden size, M vectors of all texts, T most
content ids of the batch (in `keep_topk`: impacts of a text), G ids whose logits are gathered: T, or 2T with variants
that have a leading space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from diffretriever.backbones.device import to_device, to_host
from diffretriever.backbones.inputs import pad_right
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.retriever import PromptedRetriever
from diffretriever.vectors.representations import Representations, offsets_of

if TYPE_CHECKING:
    from diffretriever.backbones.slot_layers import SlotLayers


class ContentIds(NamedTuple):
    """The content ids of a batch, on the CPU."""

    ids_BT: torch.Tensor
    """int64."""
    mask_BT: torch.Tensor
    """bool, False where a text has fewer ids."""
    gathered_BG: torch.Tensor
    """int64, the ids to gather logits of: `ids_BT`, followed by the variants if they are folded in."""
    weights_BT: torch.Tensor | None = None
    """float32, an adapter's factors of the impacts; None: impacts as in paper Eq. 3."""

    def fold(self, logits_BKG: torch.Tensor) -> torch.Tensor:
        """Return the maximum of the logits of each id and its variant, [B, K, T]."""
        if logits_BKG.shape[-1] == self.ids_BT.shape[1]:
            return logits_BKG
        return torch.maximum(*logits_BKG.chunk(2, dim=-1))


class TokenStates(NamedTuple):
    """The final hidden states of all tokens of B texts, on the device."""

    hidden_BLH: torch.Tensor
    """floating, slots and padding included."""
    is_text_BL: torch.Tensor
    """bool, True for tokens other than slots and padding."""


class TextStates(NamedTuple):
    """The states and logits of B texts before normalisation and rounding."""

    hidden_BKH: torch.Tensor
    """floating, on the device; undefined where `valid_BK` is False."""
    valid_BK: torch.Tensor
    """bool, on the CPU: the first vectors of each text, at least one."""
    content: ContentIds | None = None
    """None for methods without sparse scores."""
    logits_BKG: torch.Tensor | None = None
    """floating, on the device, of the ids `content.gathered_BG`."""
    tokens: TokenStates | None = None
    """Token states, if a slot encoder keeps them."""


class SlotReadout(NamedTuple):
    """The slots of a batch, on the CPU once their copy has completed."""

    vectors_MH: torch.Tensor
    """float16, unit vectors of the slots in `valid_BK`."""
    valid_BK: torch.Tensor
    """bool, True for slots that exist."""
    logits_BKT: torch.Tensor
    """floating, of `content.ids_BT`."""
    content: ContentIds


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """L2-normalise the last dimension in fp32."""
    return torch.nn.functional.normalize(vectors.float(), dim=-1, eps=1e-12)


def unit_float16(vectors_MH: torch.Tensor) -> torch.Tensor:
    """L2-normalise and round to float16, the stored precision."""
    return unit(vectors_MH).to(torch.float16)


def stored_vectors(states_BKH: torch.Tensor, valid_BK: torch.Tensor) -> torch.Tensor:
    """Return the unit vectors of the valid states, float16 [M, H] on the device."""
    # Indices, not a mask: indexing with a mask on a GPU synchronises with the host.
    rows_M = to_device(valid_BK.flatten().nonzero().squeeze(1), states_BKH.device)
    return unit_float16(states_BKH.flatten(0, 1)[rows_M])


def content_ids(
    texts: Sequence[PreparedText], config: PromptedRetriever, layers: SlotLayers | None = None
) -> ContentIds:
    """Return the content ids of `texts`, with the word weights of the adapter's `layers`."""
    ids_BT, mask_BT = pad_right([text.content_ids for text in texts], 0)
    gathered_BG = ids_BT
    if config.content_words.fold_space_variants:
        gathered_BG = torch.cat([ids_BT, pad_right([text.variant_ids for text in texts], 0)[0]], dim=1)
    weights_V = None if layers is None else layers.word_weights
    return ContentIds(ids_BT, mask_BT.bool(), gathered_BG, None if weights_V is None else weights_V[ids_BT])


def pooled_impacts(logits_BKT: torch.Tensor, valid_BK: torch.Tensor, weights_BT: torch.Tensor | None) -> torch.Tensor:
    """Return log(1 + max(0, logit)), max-pooled over valid slots, [B, T] (Eq. 3 of the paper, arXiv 2605.07210)."""
    weights_BKT = torch.log1p(torch.relu(logits_BKT))
    pooled_BT = weights_BKT.masked_fill(~valid_BK[:, :, None], 0).amax(dim=1)
    return pooled_BT if weights_BT is None else pooled_BT * to_device(weights_BT, pooled_BT.device)


def read_slots(states: TextStates) -> SlotReadout:
    """Normalise and fold the valid slots on the device, and start their copy to the CPU."""
    assert states.content is not None, "slots have sparse scores"
    assert states.logits_BKG is not None, "slots have sparse scores"
    vectors_MH = to_host(stored_vectors(states.hidden_BKH, states.valid_BK))
    return SlotReadout(vectors_MH, states.valid_BK, to_host(states.content.fold(states.logits_BKG)), states.content)


def represent_slots(texts: Sequence[PreparedText], config: PromptedRetriever, slots: SlotReadout) -> Representations:
    """Return the representations of a batch whose slots are on the CPU, in stored precision."""
    content, valid_BK, logits_BKT = slots.content, slots.valid_BK, slots.logits_BKT.float()
    pooled_BT = pooled_impacts(logits_BKT, valid_BK, content.weights_BT)
    weights_BT = quantise(pooled_BT.numpy(), config.sparse_rounding)
    # Keep NaN, so that storing and searching reject it instead of losing a word silently.
    keep_BT = ~(weights_BT <= 0) & content.mask_BT.numpy()
    ids_BT = content.ids_BT.numpy().astype(np.int32)
    rows = [(ids[keep], weights[keep]) for ids, weights, keep in zip(ids_BT, weights_BT, keep_BT, strict=True)]
    if config.sparse_topk is not None:
        rows = [keep_topk(ids, weights, config.sparse_topk) for ids, weights in rows]
    return Representations(
        vectors_MH=slots.vectors_MH.numpy(),
        offsets=offsets_of(valid_BK.sum(1).numpy()),
        slot_tokens=_strongest_words(content, logits_BKT)[valid_BK].numpy(),
        impact_ids=np.concatenate([ids for ids, _ in rows]),
        impact_weights=np.concatenate([weights for _, weights in rows]),
        impact_offsets=offsets_of([len(ids) for ids, _ in rows]),
        n_tokens=np.array([text.n_tokens for text in texts], np.int32),
    )


def _strongest_words(content: ContentIds, logits_BKT: torch.Tensor) -> torch.Tensor:
    # int32 [B, K]; -1 for a text without content words.
    if content.ids_BT.shape[1] == 0:
        return torch.full(logits_BKT.shape[:2], -1, dtype=torch.int32)
    best_BK = logits_BKT.masked_fill(~content.mask_BT[:, None, :], -torch.inf).argmax(-1)
    tokens_BK = content.ids_BT.gather(1, best_BK)
    return torch.where(content.mask_BT.any(1)[:, None], tokens_BK, -1).int()


def quantise(weights: np.ndarray, rounding: Literal["none", "trunc100", "round100"]) -> np.ndarray:
    """Return float32 weights of the same shape: unchanged (paper), or in hundredths (the authors' code).

    `trunc100` truncates to whole hundredths, `round100` rounds half to even.
    """
    weights = np.asarray(weights, dtype=np.float32)
    if rounding == "none":
        return weights
    hundredths = weights * np.float32(100)
    return np.trunc(hundredths) if rounding == "trunc100" else np.rint(hundredths)


def keep_topk(ids_T: np.ndarray, weights_T: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest impacts of one text, sorted by id. Ties keep the smaller id; NaN counts as largest."""
    if len(ids_T) <= k:
        return ids_T, weights_T
    heaviest = np.argsort(-np.where(np.isnan(weights_T), np.inf, weights_T), kind="stable")[:k]
    kept = np.sort(heaviest)
    return ids_T[kept], weights_T[kept]
