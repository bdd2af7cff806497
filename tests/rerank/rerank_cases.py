"""Texts to rerank, and a slow computation of their scores.

Legend: T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from diffretriever.collections import Passage, Query, open_collection
from diffretriever.rerank.likelihood import QueryLikelihood
from diffretriever.rerank.run import rerank_run
from diffretriever.schemas.rerank import RerankJob, RerankSummary

FAMILIES = ("dream", "llada", "bert")
QUERY = "honey in winter"
PASSAGES = [
    Passage("p1", "Bees", "store honey in summer and eat it in winter"),
    Passage("p2", "", "A river carries sand and clay to the sea"),
    Passage("p3", "copper", ""),
    Passage("p4", "", "🐝 蜂蜜 \x01 <|mask|> <|mdm_mask|> [MASK] <|im_end|>"),
    Passage("p5", "", "rest, water and time cure most fevers " * 6),
]
QUERIES = [Query("q1", "honey in winter"), Query("q2", "copper pipes"), Query("q3", "a river"), Query("q4", "fever")]
DEPTH = 3
# Given out of order; p2 and p4 tie for q2.
RUN = {
    "q2": {"p5": 1.0, "p4": 2.0, "p2": 2.0, "p1": 7.5},
    "q1": {"p1": -3.0, "p2": -1.0, "p3": -2.0, "p5": -5.0, "p4": -4.0},
    "q4": {"p3": 0.5},
}
FolderOf = Callable[[str], Path]
MakeReranker = Callable[..., QueryLikelihood]
"""Takes a family and fields of the config."""
MakeJob = Callable[..., RerankJob]
"""Takes fields that differ from the job over the small collection and run."""

_SYSTEM = "You are an AI assistant that can understand human language."
_BEFORE = 'Passage: "'
_AFTER = '".\nWrite a search query that this passage answers.'


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


# The chat templates of the families' model cards, or the plain form, left and right of the passage; and the tail.
SEQUENCES = {
    "dream": (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n{_BEFORE}",
        f"{_AFTER}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
    ),
    "llada": (
        f"<|startoftext|>{_header('system')}{_SYSTEM}<|eot_id|>{_header('user')}{_BEFORE}",
        f"{_AFTER}<|eot_id|>{_header('assistant')}",
        "<|eot_id|>",
    ),
    "bert": (f"[CLS]{_SYSTEM}\n{_BEFORE}", f"{_AFTER}\n", "[SEP]"),
}


def rerank(job: RerankJob) -> RerankSummary:
    return rerank_run(job, open_collection(job.collection).records())


class SlowLikelihood:
    """One unpadded sequence at a time through the bare transformers model, all logits, in float64."""

    def __init__(self, family: str, reranker: QueryLikelihood, query: str, passage: Passage) -> None:
        self.model, self.offset = reranker.backbone, reranker.config.read_offset
        self.tokenizer = reranker.backbone.vocabulary.tokenizer
        left, right, tail = SEQUENCES[family]
        text = f"{passage.title} {passage.text}" if passage.title and passage.text else passage.title or passage.text
        self.context = self._ids(left) + self._ids(text, split=True) + self._ids(right)
        self.query = self._ids(query, split=True)
        self.tail = self._ids(tail)

    def _ids(self, text: str, *, split: bool = False) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=split)["input_ids"])

    @torch.inference_mode()
    def mean_log_p(self) -> float:
        """Mean log-probability of the query tokens, all of them masked."""
        mask = self.model.vocabulary.mask_token_id
        assert mask is not None
        ids_1T = torch.tensor([self.context + [mask] * len(self.query) + self.tail])
        states_TH = self.model.model.base_model(input_ids=ids_1T).last_hidden_state[0]
        logits_TV = self.model.output_projection(self.model.head_input(states_TH)).double()
        logs_TV = logits_TV - logits_TV.exp().sum(-1, keepdim=True).log()
        start = len(self.context) + self.offset
        return sum(float(logs_TV[start + i, token]) for i, token in enumerate(self.query)) / len(self.query)
