"""Reranking by the likelihood of the query: how well a masked diffusion model fills in the query, given the passage.

Legend: N passages, L query tokens, S maskings, R rows (a passage under a masking), B rows of a batch, T padded length,
P masked tokens of a row, padded, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch

from diffretriever.backbones import Backbone, load_backbone
from diffretriever.collections import Passage
from diffretriever.encoders.base import TOKENS_PER_BATCH_CPU, TOKENS_PER_BATCH_GPU
from diffretriever.encoders.batching import token_budget_batches
from diffretriever.encoders.tensors import pad_right
from diffretriever.rerank.base import Reranker
from diffretriever.rerank.framing import FramedQuery, Framing
from diffretriever.rerank.maskings import maskings
from schemas.rerank import LikelihoodReranker

# A masked token's row of logits takes about the memory that a token takes in the model for every so many values.
_LOGITS_PER_TOKEN = 16384


class _Row(NamedTuple):
    """One sequence to run: its ids, and the columns and true ids of its masked tokens."""

    ids: np.ndarray
    positions: np.ndarray
    targets: np.ndarray


class QueryLikelihood(Reranker):
    """log p(query | passage), estimated as `maskings` says."""

    config: LikelihoodReranker

    def __init__(self, config: LikelihoodReranker, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if backbone.vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill in a query: choose another one")
        self._mask_id = backbone.vocabulary.mask_token_id
        self._framing = Framing(backbone.vocabulary, config)
        self.tokens_per_batch = TOKENS_PER_BATCH_CPU if backbone.device.type == "cpu" else TOKENS_PER_BATCH_GPU

    @classmethod
    def load(cls, config: LikelihoodReranker, device: str) -> Self:
        """Load the backbone, its adapter if there is one, and its tokenizer."""
        backbone = load_backbone(**config.backbone.model_dump(), device=device)
        return cls(config, backbone)

    def score(self, query: str, passages: Sequence[Passage]) -> np.ndarray:
        """Return estimates of log p(query | passage) in nats, float64 [N]; 0 for a query without tokens."""
        framed = self._framing(query, passages)
        length = len(framed.query_ids)
        if not length or not passages:
            return np.zeros(len(passages))
        masks_SL, weights_S = maskings(self.config, framed.query_ids.tolist())
        rows = [self._row(framed, context, mask_L) for context in framed.contexts for mask_L in masks_SL]
        terms_NS = self._log_probabilities(rows).reshape(len(passages), len(masks_SL))
        scores_N: np.ndarray = (terms_NS * weights_S).sum(axis=1) / (length if self.config.normalise_length else 1)
        if not np.isfinite(scores_N).all():
            worst = int(np.flatnonzero(~np.isfinite(scores_N))[0])
            raise ValueError(
                f"passage '{passages[worst].id}' scores {scores_N[worst]}: "
                "set backbone.dtype to bfloat16 or float32, and check the weights"
            )
        return scores_N

    def _row(self, framed: FramedQuery, context: np.ndarray, mask_L: np.ndarray) -> _Row:
        query_ids = np.where(mask_L, self._mask_id, framed.query_ids)
        positions = len(context) + np.flatnonzero(mask_L) + self.config.read_offset
        return _Row(np.concatenate([context, query_ids, framed.tail]), positions, framed.query_ids[mask_L])

    def _log_probabilities(self, rows: Sequence[_Row]) -> np.ndarray:
        """Log-probabilities of the masked tokens, summed within each row: float64 [R]."""
        per_logits = -(-self.backbone.vocab_size // _LOGITS_PER_TOKEN)
        sizes_R = np.array([len(row.ids) + per_logits * len(row.positions) for row in rows])
        sums_R = np.empty(len(rows))
        for batch in token_budget_batches(sizes_R, self.tokens_per_batch):
            sums_R[batch] = self._run([rows[i] for i in batch])
        return sums_R

    def _run(self, rows: Sequence[_Row]) -> np.ndarray:
        ids_BT, mask_BT = pad_right([row.ids for row in rows], self.backbone.vocabulary.pad_token_id)
        positions_BP, _ = pad_right([row.positions for row in rows], 0)
        with torch.inference_mode():
            logits_BPV = self.backbone.forward(ids_BT, mask_BT, positions_BP).logits
            # One row at a time: the fp32 copy of a whole batch's logits could be larger than the model.
            sums_B = [_target_sum(logits_PV, row.targets) for logits_PV, row in zip(logits_BPV, rows, strict=True)]
            summed: np.ndarray = torch.stack(sums_B).cpu().numpy()
        return summed


def _target_sum(logits_PV: torch.Tensor, targets: np.ndarray) -> torch.Tensor:
    logs_PV = torch.log_softmax(logits_PV[: len(targets)].float(), dim=-1)
    index_P1 = torch.from_numpy(targets).long().to(logs_PV.device)[:, None]
    return logs_PV.gather(1, index_P1).double().sum()
