"""Differentiable encoding, with the same sequences and passes as the encoders.

Without dropout, vectors and impacts equal those of the encoder before rounding to half precision. `sparse_topk` and
`sparse_rounding` do not apply, as in the authors' training.

Legend: B texts, K most vectors of a text, H hidden size, T most content ids of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from diffretriever.backbones.slot_layers import mean_state
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.batching import similar_lengths
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.readout import TextStates, pooled_impacts, unit
from diffretriever.encoders.tokens import with_mean
from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.schemas.training import Recipe

_TEACHERS_MEAN = 0.5
_MIN_TOKENS_CPU = 512
_MIN_TOKENS_GPU = 8192


def encode_with_gradients(encoder: BackboneEncoder, texts: Sequence[PreparedText]) -> TextVectors:
    """Encode texts in passes over texts of similar length; results keep the input order.

    Dropout is on if the backbone's module is in training mode.
    """
    # On a GPU, packed texts run in one pass. On a CPU, smaller passes stay in its cache.
    on_cpu = encoder.backbone.device.type == "cpu"
    groups: list[np.ndarray] = [np.arange(len(texts))]
    if on_cpu or not encoder.is_packed:
        min_tokens = _MIN_TOKENS_CPU if on_cpu else _MIN_TOKENS_GPU
        groups = list(similar_lengths(np.array([len(text.input_ids) for text in texts]), min_tokens))
    if len(groups) == 1:
        return _text_vectors(encoder.forward(texts))
    sorted_texts = join([_text_vectors(encoder.forward([texts[i] for i in group])) for group in groups])
    order_B = torch.from_numpy(np.argsort(np.concatenate(groups))).to(sorted_texts.ids_BT.device)
    return TextVectors(*(tensor[order_B] for tensor in sorted_texts))


class TextVectors(NamedTuple):
    """The representations of B texts on one device, padded with zeros."""

    vectors_BKH: Tensor
    """float32, L2-normalised."""
    valid_BK: Tensor
    """bool, the first vectors of each text, at least one."""
    ids_BT: Tensor
    """int64, content ids, distinct within a text; T is 0 for methods without sparse scores."""
    weights_BT: Tensor
    """float32, the impacts log(1 + ReLU) of the ids, max-pooled over the vectors' positions."""
    known_BT: Tensor
    """bool, False at padding of the ids."""
    tokens_BLH: Tensor
    """float32, mean of the L2-normalised token state and text mean; L is 0 without distillation."""
    is_text_BL: Tensor
    """bool, True for tokens of the text."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """K, T and L."""
        return self.valid_BK.shape[1], self.ids_BT.shape[1], self.is_text_BL.shape[1]

    def by_tokens(self) -> TextVectors:
        """Return the same texts with token vectors in place of slot vectors."""
        return self._replace(
            vectors_BKH=self.tokens_BLH,
            valid_BK=self.is_text_BL,
            tokens_BLH=self.tokens_BLH[:, :0],
            is_text_BL=self.is_text_BL[:, :0],
        )

    def padded(self, slots: int, ids: int, tokens: int) -> TextVectors:
        """Pad to these numbers of vectors, content ids and tokens."""
        widths = (slots, slots, ids, ids, ids, tokens, tokens)
        return TextVectors(
            *(
                pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, width - tensor.shape[1]))
                for tensor, width in zip(self, widths, strict=True)
            )
        )


def _text_vectors(states: TextStates) -> TextVectors:
    device = states.hidden_BKH.device
    valid_BK = states.valid_BK.to(device)
    vectors_BKH = unit(states.hidden_BKH).masked_fill(~valid_BK[..., None], 0)
    tokens = _token_vectors(states)
    if states.content is None or states.logits_BKG is None:
        none_BT = torch.zeros(len(valid_BK), 0, device=device)
        return TextVectors(vectors_BKH, valid_BK, none_BT.long(), none_BT, none_BT.bool(), *tokens)
    known_BT = states.content.mask_BT.to(device)
    logits_BKT = states.content.fold(states.logits_BKG.float())
    weights_BT = pooled_impacts(logits_BKT, valid_BK, states.content.weights_BT)
    ids_BT, weights_BT = states.content.ids_BT.to(device), weights_BT.masked_fill(~known_BT, 0)
    return TextVectors(vectors_BKH, valid_BK, ids_BT, weights_BT, known_BT, *tokens)


@torch.no_grad()
def _token_vectors(states: TextStates) -> tuple[Tensor, Tensor]:
    if states.tokens is None:
        none_B0H = states.hidden_BKH.detach()[:, :0].float()
        return none_B0H, none_B0H[..., 0].bool()
    hidden_BLH, is_text_BL = states.tokens
    vectors_BLH = unit(with_mean(hidden_BLH, mean_state(hidden_BLH, is_text_BL)[:, None], _TEACHERS_MEAN))
    return vectors_BLH.masked_fill(~is_text_BL[..., None], 0), is_text_BL


def join(parts: Sequence[TextVectors]) -> TextVectors:
    """Return the texts of all `parts`, in order."""
    widths = np.array([part.widths for part in parts]).max(0).tolist()
    return TextVectors(*map(torch.cat, zip(*(part.padded(*widths) for part in parts), strict=True)))


def with_training_lengths(retriever: BackboneRetriever, recipe: Recipe) -> BackboneRetriever:
    """Return the retriever with the recipe's maximum lengths of queries and passages."""
    limits = {"max_query_tokens": recipe.max_query_tokens, "max_passage_tokens": recipe.max_passage_tokens}
    return retriever.model_copy(update={"text": retriever.text.model_copy(update=limits)})
