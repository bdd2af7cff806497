"""Reranking by the likelihood of the query: how well a masked diffusion model fills in the query, given the passage.

Passage and instruction are the user's turn, the query is the assistant's. `maskings` has the three estimators: which
query tokens are hidden in which forward pass, and what each pass counts.

Legend: N passages, L query tokens, C tokens before the query, S maskings, R rows (a passage under a masking), B rows of
a batch, T padded length, P masked tokens of a row, padded, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from diffretriever.backbones import Backbone, Vocabulary, load_backbone
from diffretriever.backbones.inputs import pad_right
from diffretriever.collections import Passage
from diffretriever.encoders.batching import token_budget_batches, tokens_per_batch
from diffretriever.encoders.preparer import Prompt, frame, join_title
from diffretriever.rerank.base import Reranker
from diffretriever.schemas.rerank import LikelihoodReranker
from diffretriever.schemas.retriever import TextConfig

PROMPT = Prompt(before='Passage: "', after='".\nWrite a search query that this passage answers.', assistant="")
# A masked token's row of logits takes about the memory that a token takes in the model for every so many values.
_LOGITS_PER_TOKEN = 16384


class QueryLikelihood(Reranker):
    """log p(query | passage), estimated as `maskings` says."""

    config: LikelihoodReranker

    def __init__(self, config: LikelihoodReranker, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if backbone.vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill in a query: choose another one")
        self._mask_id = backbone.vocabulary.mask_token_id
        self._framing = Framing(backbone.vocabulary, config)
        self.tokens_per_batch = tokens_per_batch(backbone.device)

    @classmethod
    def load(cls, config: LikelihoodReranker, device: str) -> Self:
        """Load the backbone, its adapter if there is one, and its tokenizer."""
        backbone = load_backbone(**config.backbone.model_dump(), device=device)
        backbone.freeze()
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


class _Row(NamedTuple):
    """One sequence to run: its ids, and the columns and true ids of its masked tokens."""

    ids: np.ndarray
    positions: np.ndarray
    targets: np.ndarray


def maskings(config: LikelihoodReranker, query_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return masks, bool [S, L], and weights, float64 [S], of a query of at least one token.

    The estimate is the sum over maskings of their weight times the log-probabilities of the tokens they hide.
    """
    length = len(query_ids)
    if config.estimator == "one-pass":
        return np.ones((1, length), bool), np.ones(1)
    if config.estimator == "pseudo-likelihood":
        return np.eye(length, dtype=bool), np.ones(length)
    generator = np.random.default_rng([config.seed, *query_ids])
    return _monte_carlo(length, config.n_samples, generator)


def _monte_carlo(length: int, n_samples: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Hide l of L tokens, l uniform in 1..L, weight L/l (LLaDA, arXiv 2502.09992, Eq. 6).

    The ratios l/L of the samples are spread evenly from one random start, as in LLaDA's own evaluation: each is uniform
    by itself, and together they vary less. Equal maskings are merged, since they would give equal terms.
    """
    ratios_S = (generator.random() + np.arange(n_samples)) / n_samples
    hidden_S = np.minimum((ratios_S * length).astype(int) + 1, length)
    masks_SL = np.zeros((n_samples, length), bool)
    for mask_L, hidden in zip(masks_SL, hidden_S, strict=True):
        mask_L[generator.permutation(length)[:hidden]] = True
    masks_SL, counts_S = np.unique(masks_SL, axis=0, return_counts=True)
    return masks_SL, counts_S / n_samples * length / masks_SL.sum(axis=1)


@dataclass(frozen=True, slots=True)
class FramedQuery:
    """What the model sees for one query: context, query tokens, tail, in this order.

    Attributes:
        contexts: a passage each, int32 [C]: prompt, passage, prompt.
        query_ids: int32 [L]; empty for a query that the tokenizer makes nothing of.
        tail: int32, what closes the assistant's turn; may be empty.
    """

    contexts: list[np.ndarray]
    query_ids: np.ndarray
    tail: np.ndarray


class Framing:
    """Frames pairs for one vocabulary. Cuts query and passage to their limits, never the prompt."""

    def __init__(self, vocabulary: Vocabulary, config: LikelihoodReranker) -> None:
        tokenizer = vocabulary.tokenizer
        opening = tokenizer.cls_token or tokenizer.bos_token or ""
        # The two sides are tokenised apart from the passage, so that no subword crosses its borders.
        self._left, self._right = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in frame(PROMPT, tokenizer, opening)
        )
        end = vocabulary.turn_end_id
        self._tail = [] if end is None else [end]
        self._vocabulary = vocabulary
        self._config = config

    def __call__(self, query: str, passages: Sequence[Passage]) -> FramedQuery:
        """Frame one query with its passages.

        Raises:
            ValueError: prompt and query leave no room for a passage.
        """
        query_ids = self._vocabulary.tokenise([query], [self._config.max_query_tokens])[0]
        join = TextConfig(title_join=self._config.title_join)
        texts = [join_title(passage.title, passage.text, join) for passage in passages]
        rows = self._vocabulary.tokenise(texts, [self._room(len(query_ids))] * len(texts))
        return FramedQuery(
            contexts=[np.array([*self._left, *row, *self._right], np.int32) for row in rows],
            query_ids=np.array(query_ids, np.int32),
            tail=np.array(self._tail, np.int32),
        )

    def _room(self, query_tokens: int) -> int:
        framing = len(self._left) + len(self._right) + len(self._tail)
        room = min(self._config.max_passage_tokens, self._vocabulary.max_length - framing - query_tokens)
        if room < 1:
            raise ValueError(
                f"no room for a passage: the prompt takes {framing} tokens, the query {query_tokens}, the model has "
                f"{self._vocabulary.max_length}. Lower max_query_tokens."
            )
        return room
