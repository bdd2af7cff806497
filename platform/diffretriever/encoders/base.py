"""The encoder interface: texts are prepared on the CPU, then represented on the backbone's device.

The two halves are separate objects so that a pipeline can prepare texts in tasks that load no weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from diffretriever.encoders.batching import token_budget_batches
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from schemas.retriever import BackboneRetriever, Bm25Retriever, NeuralRetriever
from schemas.retriever_parts import Mode, Side, TextConfig

if TYPE_CHECKING:
    import torch

    from diffretriever.backbones import Backbone, Vocabulary

TOKENS_PER_BATCH_CPU = 2048
TOKENS_PER_BATCH_GPU = 65536


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a call of `Encoder.encode` put through the model."""

    tokens: int
    """Real tokens, prompt and slots included."""
    padded_tokens: int
    """The same with padding."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rest of the platform needs to know of an encoder's model."""

    device: torch.device
    dtype: str
    """Precision of the weights, such as `bfloat16`."""
    hidden_size: int
    """H of the vectors."""
    vocab_size: int | None
    """Size of the vocabulary that impacts point into; None without sparse scores."""
    weights: str
    """Digest of the weights, adapter included."""


class Preparer(ABC):
    """Turns texts into `PreparedText` values. Truncation cuts the text, never the prompt, slots or tail."""

    def __init__(self, vocabulary: Vocabulary, text: TextConfig) -> None:
        self.vocabulary = vocabulary
        self.text = text
        self.most_slots: int | None = None
        """Most slots that the adapter knows; None: any number."""

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
        if budgets is not None and self.most_slots is not None and max(slots, default=1) > self.most_slots:
            raise ValueError(f"a query's budget must be at most {self.most_slots}, for which the adapter was trained")
        return self.prepare(texts, "query", slots)

    def prepare_passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[PreparedText]:
        """Prepare passages from their two fields, joined as the config says."""
        joined = [join_title(title, text, self.text) for title, text in zip(titles, texts, strict=True)]
        return self.prepare(joined, "passage", [self.default_slots("passage")] * len(joined))

    def query_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of queries as they are written: no prompt, no special tokens, cut at the limit."""
        return self.vocabulary.tokenise(texts, [self.text.max_query_tokens] * len(texts))

    def _limit(self, side: Side) -> int:
        return self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens


class Encoder(ABC):
    """Texts to representations. A text's result does not depend on its batch."""

    def __init__(self, config: NeuralRetriever, preparer: Preparer, facts: ModelFacts) -> None:
        self.config = config
        self.preparer = preparer
        self.facts = facts
        self.tokens_per_batch = TOKENS_PER_BATCH_CPU if facts.device.type == "cpu" else TOKENS_PER_BATCH_GPU
        self.cost = BatchCost(0, 0)

    @classmethod
    @abstractmethod
    def load_preparer(cls, config: Any) -> Preparer:
        """Return what prepares texts for `config`, without loading any weights."""

    @classmethod
    @abstractmethod
    def load(cls, config: Any, device: str) -> Self:
        """Load the model of `config` onto `device`; see `load_encoder`."""

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
        """Represent one batch."""

    def _empty(self) -> Representations:
        none, zero = np.zeros(0, np.int32), np.zeros(1, np.int64)
        vectors = np.zeros((0, self.facts.hidden_size), np.float16)
        return Representations(vectors, zero, none, none, np.zeros(0, np.float32), zero, none)


class BackboneEncoder(Encoder):
    """An encoder over one of the native backbones."""

    def __init__(self, config: BackboneRetriever, backbone: Backbone, preparer: Preparer) -> None:
        facts = ModelFacts(
            device=backbone.device,
            dtype=str(backbone.dtype).removeprefix("torch."),
            hidden_size=backbone.hidden_size,
            vocab_size=backbone.vocab_size,
            weights=backbone.weights_digest,
        )
        super().__init__(config, preparer, facts)
        self.backbone = backbone

    @classmethod
    @abstractmethod
    def make_preparer(cls, config: Any, vocabulary: Vocabulary) -> Preparer:
        """Return what prepares texts for `config`, given the backbone's tokenizer side."""

    @classmethod
    def load_preparer(cls, config: BackboneRetriever) -> Preparer:
        """Read the tokenizer, and what an adapter's folder says of its training; see `released.check_released`."""
        from diffretriever.backbones import load_vocabulary
        from diffretriever.backbones.slot_layers import most_slots
        from diffretriever.backbones.source import resolve_adapter
        from diffretriever.encoders.released import check_released

        vocabulary = load_vocabulary(config.backbone.source, revision=config.backbone.revision)
        preparer = cls.make_preparer(config, vocabulary)
        check_released(config, preparer)
        place = config.backbone
        if place.adapter is not None:
            preparer.most_slots = most_slots(resolve_adapter(place.adapter, place.adapter_revision, weights=False))
        return preparer

    @classmethod
    def load(cls, config: BackboneRetriever, device: str) -> Self:
        """Load the backbone, its adapter if there is one, and its tokenizer."""
        from diffretriever.backbones import load_backbone

        # First, as an adapter for another prompt is refused before any weights are read.
        preparer = cls.load_preparer(config)
        backbone = load_backbone(**config.backbone.model_dump(), device=device)
        return cls(config, backbone, preparer)


def join_title(title: str, text: str, config: TextConfig | Bm25Retriever) -> str:
    """Return the passage's one text; an empty title or text adds no separator."""
    if config.title_join == "none":
        return text
    separator = {"space": " ", "period-space": ". "}[config.title_join]
    return separator.join(part for part in (title, text) if part)
