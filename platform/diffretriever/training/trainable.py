"""The recipe's limits of texts, in place of a retriever's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from diffretriever.backbones import Backbone
from diffretriever.encoders.base import BackboneEncoder, similar_lengths
from diffretriever.encoders.generated import GeneratedEncoder
from diffretriever.encoders.impacts import ContentIds, content_ids
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.pooled import PooledEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.tensors import pad_right
from diffretriever.scoring.sparse import log_relu, max_pool
from schemas.retriever import BackboneRetriever
from schemas.training import Recipe


def with_training_lengths(retriever: BackboneRetriever, recipe: Recipe) -> BackboneRetriever:
    """Return the retriever with the recipe's limits of queries and passages in place of its own."""
    limits = {"max_query_tokens": recipe.max_query_tokens, "max_passage_tokens": recipe.max_passage_tokens}
    return retriever.model_copy(update={"text": retriever.text.model_copy(update=limits)})


class TextVectors(NamedTuple):
    """The representations of B texts, on one device; what a text does not have is zero."""

    vectors_BKH: Tensor
    """float32, L2-normalised."""
    valid_BK: Tensor
    """bool, the vectors that a text has: its first ones, at least one."""
    ids_BT: Tensor
    """int64, content ids, distinct within a text; T is 0 for methods without sparse scores."""
    weights_BT: Tensor
    """float32, the impacts log(1 + ReLU) of the ids, max-pooled over the vectors' positions."""
    known_BT: Tensor
    """bool, the ids that a text has."""

    def padded(self, slots: int, ids: int) -> TextVectors:
        """Return the same with room for at least so many vectors and content ids a text."""
        more_slots = max(0, slots - self.valid_BK.shape[1])
        more_ids = (0, max(0, ids - self.ids_BT.shape[1]))
        return TextVectors(
            pad(self.vectors_BKH, (0, 0, 0, more_slots)),
            pad(self.valid_BK, (0, more_slots)),
            pad(self.ids_BT, more_ids),
            pad(self.weights_BT, more_ids),
            pad(self.known_BT, more_ids),
        )

    def leaf(self) -> TextVectors:
        """Return the same values cut off from what computed them, ready to collect gradients."""
        return self._replace(
            vectors_BKH=self.vectors_BKH.detach().requires_grad_(),
            weights_BT=self.weights_BT.detach().requires_grad_(),
        )


class Taught(NamedTuple):
    """What a teacher makes of the texts of a loss; no gradients."""

    queries: TextVectors
    passages: TextVectors


def join(parts: Sequence[TextVectors]) -> TextVectors:
    """Return the texts of all `parts`, in order."""
    slots = max(part.valid_BK.shape[1] for part in parts)
    ids = max(part.ids_BT.shape[1] for part in parts)
    return TextVectors(*map(torch.cat, zip(*(part.padded(slots, ids) for part in parts), strict=True)))


_LEAST_TOKENS_CPU = 512


_LEAST_TOKENS_GPU = 8192


class TrainableEncoder(ABC):
    """An encoder's differentiable side. Whether dropout is on is the mode of the backbone's module."""

    def __init__(self, encoder: BackboneEncoder) -> None:
        self.encoder = encoder
        self.backbone: Backbone = encoder.backbone

    def encode(self, texts: Sequence[PreparedText]) -> TextVectors:
        """Represent texts, in their order, on the backbone's device, in passes over texts of similar length.

        Gradients reach the backbone's trainable parameters.
        """
        least_tokens = _LEAST_TOKENS_CPU if self.backbone.device.type == "cpu" else _LEAST_TOKENS_GPU
        groups = list(similar_lengths(np.array([len(text.input_ids) for text in texts]), least_tokens))
        if len(groups) == 1:
            return self.encode_batch(texts)
        found = join([self.encode_batch([texts[i] for i in group]) for group in groups])
        places_B = torch.from_numpy(np.argsort(np.concatenate(groups))).to(found.ids_BT.device)
        return TextVectors(*(tensor[places_B] for tensor in found))

    @abstractmethod
    def encode_batch(self, texts: Sequence[PreparedText]) -> TextVectors:
        """Represent one batch."""


class TrainableMasked(TrainableEncoder):
    """DiffRetriever: all slots read in one pass (paper §3.2)."""

    encoder: MaskedEncoder

    def encode_batch(self, texts: Sequence[PreparedText]) -> TextVectors:
        """Represent one batch by one forward pass."""
        config = self.encoder.config
        content = content_ids(texts, fold_space_variants=config.content_words.fold_space_variants)
        batch = self.encoder.masked_batch(texts, content.gathered_BG)
        hidden_BKH, logits_BKG = self.backbone.forward(
            batch.ids_BL,
            batch.mask_BL,
            (batch.columns_BK + config.read_offset).clamp(min=0),
            batch.gathered_BG,
            position_ids=batch.position_ids_BL,
            slots=batch.slots_BL,
            nested=config.nested_slots,
        )
        return _with_impacts(hidden_BKH, batch.valid_BK, content, logits_BKG)


class TrainableGenerated(TrainableEncoder):
    """PromptReps: tokens are decoded greedily without gradient or dropout, then all states are read in one pass."""

    encoder: GeneratedEncoder

    def encode_batch(self, texts: Sequence[PreparedText]) -> TextVectors:
        """Represent one batch by decoding and one forward pass."""
        rows, valid_BK = self._answered(texts)
        ids_BL, mask_BL = pad_right(rows, self.backbone.vocabulary.pad_token_id)
        prompts_B = torch.tensor([len(text.input_ids) for text in texts])
        # Where a text has fewer vectors any position of its own will do.
        steps_BK = torch.arange(valid_BK.shape[1]) * valid_BK
        positions_BK = prompts_B[:, None] - 1 + steps_BK
        content = content_ids(texts, fold_space_variants=self.encoder.config.content_words.fold_space_variants)
        hidden_BKH, logits_BKG = self.backbone.forward(ids_BL, mask_BL, positions_BK, content.gathered_BG)
        return _with_impacts(hidden_BKH, valid_BK, content, logits_BKG)

    def _answered(self, texts: Sequence[PreparedText]) -> tuple[list[np.ndarray], Tensor]:
        """The texts, each followed by the tokens whose states are read; which states are vectors, bool [B, K]."""
        model = self.backbone.model
        was_training = model.training
        model.eval()
        # Not inference_mode: what the model keeps from one pass for the next must be usable with gradients.
        with torch.no_grad():
            # A prefix kept from an earlier step would be of other weights.
            fed_BN, valid_BN = self.encoder.decoded_tokens([replace(text, prefix_tokens=0) for text in texts])
        model.train(was_training)
        answers = [fed_N[valid_N][1:].numpy() for fed_N, valid_N in zip(fed_BN, valid_BN, strict=True)]
        rows = [np.concatenate([text.input_ids, answer]) for text, answer in zip(texts, answers, strict=True)]
        return rows, valid_BN[:, : int(valid_BN.sum(1).max())]


class TrainablePooled(TrainableEncoder):
    """DiffEmbed and RepLLaMA: the mean of a text's states, or the last of them."""

    encoder: PooledEncoder

    def encode_batch(self, texts: Sequence[PreparedText]) -> TextVectors:
        """Represent one batch by one forward pass; there are no impacts."""
        pooled_BH = self.encoder.pool(texts)
        none_BT = torch.zeros(len(texts), 0, device=pooled_BH.device)
        return TextVectors(
            normalize(pooled_BH, dim=-1, eps=1e-12)[:, None],
            torch.ones(len(texts), 1, dtype=torch.bool, device=pooled_BH.device),
            none_BT.long(),
            none_BT,
            none_BT.bool(),
        )


def trainable(encoder: BackboneEncoder) -> TrainableEncoder:
    """Return the differentiable side of an encoder."""
    kinds: dict[str, type[TrainableEncoder]] = {
        "masked": TrainableMasked,
        "generated": TrainableGenerated,
        "pooled": TrainablePooled,
    }
    return kinds[encoder.config.method](encoder)


def _with_impacts(hidden_BKH: Tensor, valid_BK: Tensor, content: ContentIds, logits_BKG: Tensor) -> TextVectors:
    valid_BK = valid_BK.to(hidden_BKH.device)
    known_BT = content.mask_BT.to(hidden_BKH.device)
    weights_BT = max_pool(log_relu(content.fold(logits_BKG.float())), valid_BK)
    vectors_BKH = normalize(hidden_BKH.float(), dim=-1, eps=1e-12)
    return TextVectors(
        vectors_BKH.masked_fill(~valid_BK[..., None], 0),
        valid_BK,
        content.ids_BT.to(hidden_BKH.device),
        weights_BT.masked_fill(~known_BT, 0),
        known_BT,
    )
