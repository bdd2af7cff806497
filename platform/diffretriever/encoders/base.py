"""The encoder interface: texts are prepared on the CPU, then represented on the backbone's device.

The two halves are separate objects so that a pipeline can prepare texts in tasks that load no weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diffretriever.encoders.batching import token_budget_batches
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from schemas.retriever import Bm25Retriever, Mode, NeuralRetriever, Side, TextConfig

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone, Vocabulary

# Subwords are rarely longer than this; longer texts are cut before they are tokenised, so that a passage of a
# megabyte costs no more than one of the length that the model can see.
_CHARACTERS_PER_TOKEN = 64
TOKENS_PER_BATCH_CPU = 2048
TOKENS_PER_BATCH_GPU = 65536


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a call of `Encoder.encode` put through the model."""

    tokens: int
    """Real tokens, prompt and slots included."""
    padded_tokens: int
    """The same with padding."""


class Preparer(ABC):
    """Turns texts into `PreparedText` values. Truncation cuts the text, never the prompt, slots or tail."""

    def __init__(self, vocabulary: Vocabulary, text: TextConfig) -> None:
        self.vocabulary = vocabulary
        self.text = text

    @abstractmethod
    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Prepare `texts` of one side; text i gets `slots[i]` slots (ignored by encoders without slots)."""

    @abstractmethod
    def default_slots(self, side: Side) -> int:
        """The configured number of slots of a side."""

    def prepare_queries(self, texts: Sequence[str], budgets: Sequence[int] | None = None) -> list[PreparedText]:
        """Prepare queries; `budgets` gives each its own K_q, None the configured one for all."""
        slots = [self.default_slots("query")] * len(texts) if budgets is None else list(budgets)
        if len(slots) != len(texts):
            raise ValueError(f"{len(texts)} queries but {len(slots)} budgets: give one K_q a query")
        if budgets is not None and min(slots, default=1) < 1:
            raise ValueError("a query's budget must be at least 1")
        return self.prepare(texts, "query", slots)

    def prepare_passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[PreparedText]:
        """Prepare passages from their two fields, joined as the config says."""
        joined = [join_title(title, text, self.text) for title, text in zip(titles, texts, strict=True)]
        return self.prepare(joined, "passage", [self.default_slots("passage")] * len(joined))

    def _tokenise(self, texts: Sequence[str], limits: Sequence[int], *, special: bool) -> list[list[int]]:
        """Token ids of each text, at most the largest of `limits`; characters are cut at each text's own."""
        if not texts:
            return []
        cut = [text[: limit * _CHARACTERS_PER_TOKEN] for text, limit in zip(texts, limits, strict=True)]
        encoded = self.vocabulary.tokenizer(
            cut,
            add_special_tokens=special,
            # A passage that spells "<|im_end|>" or "[MASK]" means those characters, not the token.
            split_special_tokens=True,
            truncation=True,
            max_length=max(limits),
        )
        return list(encoded["input_ids"])

    def _limit(self, side: Side) -> int:
        return self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens


class Encoder(ABC):
    """Texts to representations. One pass per batch; a text's result does not depend on its batch."""

    def __init__(self, config: NeuralRetriever, backbone: Backbone, preparer: Preparer) -> None:
        self.config = config
        self.backbone = backbone
        self.preparer = preparer
        on_gpu = backbone.device.type != "cpu"
        self.tokens_per_batch = TOKENS_PER_BATCH_GPU if on_gpu else TOKENS_PER_BATCH_CPU
        self.cost = BatchCost(0, 0)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The scores this encoder's representations support."""
        return self.config.modes

    def encode_queries(self, texts: Sequence[str], budgets: Sequence[int] | None = None) -> Representations:
        """Represent queries, each with its own K_q where `budgets` is given."""
        return self.encode(self.preparer.prepare_queries(texts, budgets))

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Representations:
        """Represent passages."""
        return self.encode(self.preparer.prepare_passages(titles, texts))

    def encode(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent prepared texts, in their order, in batches filled by a token budget."""
        if not texts:
            return self._empty()
        lengths = np.array([len(text.input_ids) for text in texts])
        batches = list(token_budget_batches(lengths, self.tokens_per_batch))
        self.cost = BatchCost(int(lengths.sum()), sum(len(batch) * int(lengths[batch].max()) for batch in batches))
        parts = [self.encode_batch([texts[i] for i in batch]) for batch in batches]
        return Representations.concatenate(parts).take(np.argsort(np.concatenate(batches), kind="stable"))

    @abstractmethod
    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent one batch in one forward pass."""

    def _empty(self) -> Representations:
        none, zero = np.zeros(0, np.int32), np.zeros(1, np.int64)
        vectors = np.zeros((0, self.backbone.hidden_size), np.float16)
        return Representations(vectors, zero, none, none, np.zeros(0, np.float32), zero, none)


def join_title(title: str, text: str, config: TextConfig | Bm25Retriever) -> str:
    """Return the passage's one text; an empty title or text adds no separator."""
    if config.title_join == "none":
        return text
    separator = {"space": " ", "period-space": ". "}[config.title_join]
    return separator.join(part for part in (title, text) if part)
