"""Reranks by query likelihood: how well a masked diffusion model predicts the query, given the passage.

Passage and instruction are the user's turn, the query is the assistant's. One forward pass per passage predicts all
query tokens, masked, independently; so the score is neither the likelihood nor a bound.

Legend: N passages, L query tokens, B passages of a batch, T padded length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.inputs import pad_right
from diffretriever.collections import Passage
from diffretriever.encoders.batching import token_batches
from diffretriever.encoders.preparer import Prompt, join_title, render_prompt
from diffretriever.rerank.base import Reranker
from diffretriever.schemas.rerank import QueryLikelihoodConfig
from diffretriever.schemas.retriever import TextConfig

PROMPT = Prompt(before='Passage: "', after='".\nWrite a search query that this passage answers.', assistant="")
# Number of logits that take about as much memory as one token in the model.
_LOGITS_PER_TOKEN = 16384


class FramedQuery(NamedTuple):
    """A query with its passages as the model sees them."""

    contexts: list[np.ndarray]
    """int32, N prompts with a passage each."""
    query_ids: np.ndarray
    """int32 [L]; empty for a query without tokens."""
    tail: np.ndarray
    """int32, the end of the assistant's turn; may be empty."""


class QueryLikelihood(Reranker):
    """Scores passages by log p(query | passage) / L, independently of the other passages."""

    config: QueryLikelihoodConfig

    def __init__(self, config: QueryLikelihoodConfig, backbone: Backbone) -> None:
        """Raises `ValueError` for a backbone that has no mask token."""
        super().__init__(config, backbone)
        vocabulary = backbone.vocabulary
        opening = vocabulary.tokenizer.cls_token or vocabulary.tokenizer.bos_token or ""
        # The two sides are tokenised apart from the passage, so that no subword crosses its borders.
        self._left, self._right = (
            vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in render_prompt(PROMPT, vocabulary.tokenizer, opening)
        )
        self._tail = [] if vocabulary.turn_end_id is None else [vocabulary.turn_end_id]

    def score(self, query: str, passages: Sequence[Passage]) -> np.ndarray:
        """Return scores in nats per query token, float64 [N]; higher is better. 0 for an empty query.

        Raises:
            ValueError: A score is not finite, or prompt and query leave no tokens for a passage.
        """
        framed = self.framed(query, passages)
        length = len(framed.query_ids)
        if not length or not passages:
            return np.zeros(len(passages))
        per_logits = -(-self.backbone.vocab_size // _LOGITS_PER_TOKEN)
        outside = length + len(framed.tail) + per_logits * length
        sizes_N = np.array([len(context) + outside for context in framed.contexts])
        scores_N = np.empty(len(passages))
        for batch in token_batches(sizes_N, self.tokens_per_batch):
            scores_N[batch] = self._log_likelihoods(framed, [framed.contexts[i] for i in batch]) / length
        if not np.isfinite(scores_N).all():
            worst = int(np.flatnonzero(~np.isfinite(scores_N))[0])
            raise ValueError(
                f"passage '{passages[worst].id}' scores {scores_N[worst]}: "
                "set backbone.dtype to bfloat16 or float32, and check the weights"
            )
        return scores_N

    def framed(self, query: str, passages: Sequence[Passage]) -> FramedQuery:
        """Build the prompts of a query and its passages; only query and passages are truncated.

        Raises:
            ValueError: Prompt and query leave no tokens for a passage.
        """
        config, vocabulary = self.config, self.backbone.vocabulary
        query_ids = vocabulary.tokenise([query], [config.max_query_tokens])[0]
        framing = len(self._left) + len(self._right) + len(self._tail)
        limit = min(config.max_passage_tokens, vocabulary.max_length - framing - len(query_ids))
        if limit < 1:
            raise ValueError(
                f"no tokens left for a passage: the prompt takes {framing} tokens, the query {len(query_ids)}, the "
                f"model has {vocabulary.max_length}: lower max_query_tokens"
            )
        join = TextConfig(title_join=config.title_join)
        texts = [join_title(passage.title, passage.text, join) for passage in passages]
        return FramedQuery(
            [
                np.array([*self._left, *row, *self._right], np.int32)
                for row in vocabulary.tokenise(texts, [limit] * len(texts))
            ],
            np.array(query_ids, np.int32),
            np.array(self._tail, np.int32),
        )

    def _log_likelihoods(self, framed: FramedQuery, contexts: Sequence[np.ndarray]) -> np.ndarray:
        length = len(framed.query_ids)
        masks_L = np.full(length, self.backbone.vocabulary.mask_token_id, np.int32)
        rows = [np.concatenate([context, masks_L, framed.tail]) for context in contexts]
        ids_BT, mask_BT = pad_right(rows, self.backbone.vocabulary.pad_token_id)
        starts_B1 = torch.tensor([[len(context) + self.config.read_offset] for context in contexts])
        with torch.inference_mode():
            logits_BLV = self.backbone.forward(ids_BT, mask_BT, starts_B1 + torch.arange(length)).logits
            index_L1 = torch.from_numpy(framed.query_ids).long().to(logits_BLV.device)[:, None]
            # One row at a time: the fp32 copy of a whole batch's logits could be larger than the model.
            sums_B = [
                torch.log_softmax(logits_LV.float(), dim=-1).gather(1, index_L1).double().sum()
                for logits_LV in logits_BLV
            ]
            summed: np.ndarray = torch.stack(sums_B).cpu().numpy()
        return summed
