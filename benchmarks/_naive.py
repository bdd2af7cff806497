"""The plainest way to encode: fixed batches in input order, logits of the whole vocabulary at every position.

Legend: B texts of a batch, L padded length, K slots, H hidden size, V vocabulary, T impacts of a text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.representations import Representations, offsets_of
from diffretriever.encoders.tensors import pad_right, unit_float16
from diffretriever.scoring.sparse import impact_matrix

NAIVE_BATCH = 16


def encode_naively(encoder: MaskedEncoder, texts: Sequence[PreparedText]) -> Representations:
    """Represent prepared texts as the plainest loop would, a fixed number at a time, in input order."""
    starts = range(0, len(texts), NAIVE_BATCH)
    return Representations.concatenate(
        [one for start in starts for one in _naive_batch(encoder, texts[start : start + NAIVE_BATCH])]
    )


@torch.inference_mode()
def _naive_batch(encoder: MaskedEncoder, texts: Sequence[PreparedText]) -> list[Representations]:
    ids_BL, mask_BL = pad_right([text.input_ids for text in texts], encoder.backbone.vocabulary.pad_token_id)
    every_BL = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape)
    hidden_BLH, logits_BLV = encoder.backbone.forward(ids_BL, mask_BL, every_BL)
    results = []
    for text, hidden_LH, logits_LV in zip(texts, hidden_BLH, logits_BLV, strict=True):
        end = len(text.input_ids) - len(encoder.preparer.tail)
        results.append(_read_slots(text, hidden_LH[end - text.slots : end], logits_LV[end - text.slots : end]))
    return results


def _read_slots(text: PreparedText, hidden_KH: torch.Tensor, logits_KV: torch.Tensor) -> Representations:
    allowed_V = torch.zeros(logits_KV.shape[-1])
    allowed_V[text.content_ids] = 1
    weights_V = torch.log1p(torch.relu(logits_KV)).amax(0) * allowed_V
    ids_T = weights_V.nonzero().squeeze(1)
    tokens_K = logits_KV.masked_fill(allowed_V == 0, -torch.inf).argmax(-1)
    return Representations(
        vectors_MH=unit_float16(hidden_KH),
        offsets=offsets_of([text.slots]),
        slot_tokens=(tokens_K if len(text.content_ids) else torch.full_like(tokens_K, -1)).int().numpy(),
        impact_ids=ids_T.int().numpy(),
        impact_weights=weights_V[ids_T].numpy(),
        impact_offsets=offsets_of([len(ids_T)]),
        n_tokens=np.array([text.n_tokens], np.int32),
    )


def check_same(ours: Representations, theirs: Representations, vocab_size: int) -> None:
    """Fail unless both say the same of the texts, but for the rounding of sums taken in another order."""
    np.testing.assert_allclose(ours.vectors_MH, theirs.vectors_MH, atol=2e-3)
    np.testing.assert_array_equal(ours.slot_tokens, theirs.slot_tokens)
    sparse = [impact_matrix(r.impact_ids, r.impact_weights, r.impact_offsets, vocab_size) for r in (ours, theirs)]
    assert sparse[0].nnz, "texts without impacts would compare nothing"
    assert abs(sparse[0] - sparse[1]).max() < 1e-4, "both loops must give the same impacts"
