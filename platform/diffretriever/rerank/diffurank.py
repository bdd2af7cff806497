"""Reranks as DiffuRank: masks in the answer stand for the relevance of passages, or for the ranks of a ranking.

Prompts, windows and decoding are those of the published code (arXiv 2602.12528, github.com/liuqi6777/DiffusionRank).
Its loop skips a query with `window - stride` passages; here each query is ranked.

Legend: N passages of a query, n passages of a window, M masks that are open, B batch, T padded length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.inputs import pad_right
from diffretriever.collections import Passage
from diffretriever.encoders.batching import token_batches
from diffretriever.encoders.preparer import join_title
from diffretriever.rerank.base import Reranker
from diffretriever.schemas.rerank import DiffuRankConfig
from diffretriever.schemas.retriever import TextConfig

_RELEVANCE = "The relevance score should be either 0 (not relevant) or 1 (relevant).\n\nQuery: {query}\n\n"
PROMPTS = {
    "pointwise": "Given a query and a document, determine whether the document is relevant to the query. "
    f"{_RELEVANCE}Document:\n{{documents}}",
    "logits-listwise": "Given a query and {num} documents indicated by a numeric identifier, determine whether each "
    f"document is relevant to the query. {_RELEVANCE}Documents:\n{{documents}}\n",
    "permutation-listwise": "Given a query and {num} documents indicated by a character identifier, rank the documents "
    "from most relevant to least relevant to the query.\n\nYou should output a ranking using the document identifier, "
    "from most relevant to least relevant, separated by spaces.\n\nQuery: {query}\n\nDocuments:\n{documents}\n",
}
"""The user's turn, by method."""
_LEAST_PROBABILITY = 1e-12


class DiffuRank(Reranker):
    """Ranks passages by the tokens that a masked diffusion model predicts in its answer."""

    config: DiffuRankConfig

    def __init__(self, config: DiffuRankConfig, backbone: Backbone) -> None:
        """Raises `ValueError` for a backbone that has no mask token or no chat template."""
        super().__init__(config, backbone)
        self._tokenizer = backbone.vocabulary.tokenizer
        if not self._tokenizer.chat_template:
            raise ValueError("this backbone has no chat template, which DiffuRank's prompts need: choose another one")
        self._mask = self._tokenizer.convert_ids_to_tokens(backbone.vocabulary.mask_token_id)
        self._special = re.compile("|".join(map(re.escape, self._tokenizer.get_added_vocab())))
        self._no_and_yes = torch.tensor([self._token("0"), self._token("1")], device=backbone.device)

    def score(self, query: str, passages: Sequence[Passage]) -> np.ndarray:
        """Return the probability of relevance for `pointwise`, otherwise N for the first place down to 1."""
        if not passages:
            return np.zeros(0)
        query, texts = self._plain(query), self._texts(passages)
        if self.config.method == "pointwise":
            return self._relevances(query, [[text] for text in texts])[:, 0]
        order = list(range(len(texts)))
        for start, end in windows(len(texts), self.config.window, self.config.stride):
            window = order[start:end]
            order[start:end] = [window[i] for i in self._ranking(query, [texts[i] for i in window])]
        scores_N = np.empty(len(texts))
        scores_N[order] = np.arange(len(texts), 0, -1)
        return scores_N

    def _texts(self, passages: Sequence[Passage]) -> list[str]:
        join = TextConfig(title_join=self.config.title_join)
        joined = [join_title(passage.title, passage.text, join) for passage in passages]
        return [self._plain(" ".join(text.split()[: self.config.max_passage_words])) for text in joined]

    def _plain(self, text: str) -> str:
        """Break up special tokens in a text: a mask in it would be one of the answer's."""
        return self._special.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", text)

    def _token(self, text: str) -> int:
        return int(self._tokenizer(text, add_special_tokens=False)["input_ids"][-1])

    def _ranking(self, query: str, texts: Sequence[str]) -> list[int]:
        """Return the places of n texts in the window, best first."""
        if self.config.method == "permutation-listwise":
            return self._permutation(query, texts)
        order: list[int] = np.argsort(-self._relevances(query, [texts])[0], kind="stable").tolist()
        return order

    def _relevances(self, query: str, windows: Sequence[Sequence[str]]) -> np.ndarray:
        """Return p(1) / (p(0) + p(1)) at each mask of windows of n texts, float64 [windows, n]."""
        count = len(windows[0])
        answer = "\n".join(f"Document {i}: {self._mask}" for i in range(count))
        if self.config.method == "pointwise":
            answer = self._mask
        rows = [self._row(query, texts, answer) for texts in windows]
        found = np.empty((len(rows), count))
        for batch in token_batches(np.array([len(row) for row in rows]), self.tokens_per_batch):
            logits_BM2 = self._logits([rows[i] for i in batch], self._no_and_yes).double()
            found[batch] = torch.sigmoid(logits_BM2[..., 1] - logits_BM2[..., 0]).cpu().numpy()
        return found

    def _permutation(self, query: str, texts: Sequence[str]) -> list[int]:
        names = [f" {_letter(i)}" for i in range(len(texts))]
        tokens = [self._token(name) for name in names]
        ranking: list[int | None] = [None] * len(texts)
        for step in range(1, self.config.steps + 1):
            places = [place for place, text in enumerate(ranking) if text is None]
            left = [text for text in range(len(texts)) if text not in ranking]
            wanted = max(1, round(step / self.config.steps * len(texts))) - (len(texts) - len(left))
            if wanted <= 0:
                continue
            filled = "".join(self._mask if text is None else names[text] for text in ranking)
            row = self._row(query, texts, f"Ranking (most to least relevant):{filled}")
            logs_MV = torch.log_softmax(self._logits([row])[0].float(), dim=-1)
            found_MM = logs_MV[:, [tokens[text] for text in left]].exp().double().cpu().numpy()
            choose = assigned if self.config.decoding == "assignment" else greedy
            for mask, text in choose(found_MM, wanted):
                ranking[places[mask]] = left[text]
        return [text for text in ranking if text is not None]

    def _row(self, query: str, texts: Sequence[str], answer: str) -> np.ndarray:
        """Return the token ids of a conversation; texts are cut by tokens only if it exceeds the model's length."""
        ids, most = self._ids(query, texts, answer), self.backbone.max_length
        if len(ids) > most:
            # One less a text, for tokens that differ at its borders.
            room = (most - len(self._ids(query, [""] * len(texts), answer))) // len(texts) - 1
            if room < 1:
                raise ValueError(
                    f"no room for {len(texts)} passages: prompt and query take nearly all {most} tokens: lower window"
                )
            spans = [self.backbone.vocabulary.spans(text, room) for text in texts]
            cut = [text[: ends[-1][1]] if ends else text for text, ends in zip(texts, spans, strict=True)]
            ids = self._ids(query, cut, answer)
        return ids

    def _ids(self, query: str, texts: Sequence[str], answer: str) -> np.ndarray:
        method = self.config.method
        documents = list(texts)
        if method != "pointwise":
            names = [_letter(i) if method == "permutation-listwise" else str(i) for i in range(len(texts))]
            documents = [f"Document {name}: {text}" for name, text in zip(names, texts, strict=True)]
        prompt = PROMPTS[method].format(num=len(texts), query=query, documents="\n".join(documents))
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        rendered = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        return np.array(self._tokenizer(rendered, add_special_tokens=False)["input_ids"], np.int32)

    def _logits(self, rows: Sequence[np.ndarray], tokens: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits at all masks of rows with the same number of masks, [B, M, tokens]."""
        mask_id = self.backbone.vocabulary.mask_token_id
        masks_BM = torch.from_numpy(np.stack([np.flatnonzero(row == mask_id) for row in rows]))
        ids_BT, attended_BT = pad_right(rows, self.backbone.vocabulary.pad_token_id)
        with torch.inference_mode():
            logits = self.backbone.forward(ids_BT, attended_BT, masks_BM, tokens).logits
        if not logits.isfinite().all():
            raise ValueError(
                "the model's logits are not finite: set backbone.dtype to bfloat16 or float32, and check the weights"
            )
        return logits


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def windows(count: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each window of a ranking, the last passages first."""
    start, end = max(count - size, 0), count
    yield start, end
    while start > 0:
        start, end = max(start - stride, 0), end - stride
        yield start, end


def assigned(probabilities_MM: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return the `count` likeliest pairs, (mask, text), of the likeliest permutation."""
    costs_MM = -np.log(np.clip(probabilities_MM, _LEAST_PROBABILITY, 1))
    masks, texts = linear_sum_assignment(costs_MM)
    best = np.argsort(-probabilities_MM[masks, texts], kind="stable")[:count]
    return [(int(masks[i]), int(texts[i])) for i in best]


def greedy(probabilities_MM: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return `count` pairs, (mask, text), taken by descending probability, each mask and text once."""
    pairs: dict[int, int] = {}
    for flat in np.argsort(-probabilities_MM, axis=None, kind="stable"):
        mask, text = divmod(int(flat), probabilities_MM.shape[1])
        if len(pairs) < count and mask not in pairs and text not in pairs.values():
            pairs[mask] = text
    return list(pairs.items())
