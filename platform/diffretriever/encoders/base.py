"""The encoder interface: texts are prepared on the CPU, then represented on the backbone's device.

The two halves are separate objects so that a pipeline can prepare texts in tasks that load no weights.

Legend: B texts of a batch, K most vectors of a text in the batch, G ids whose logits are read, H hidden size, N texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.encoders.representations import Representations, refuse_queries
from diffretriever.progress import Progress
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.retriever import BackboneRetriever, NeuralRetriever

if TYPE_CHECKING:
    import torch

    from diffretriever.backbones import Backbone, Vocabulary
    from diffretriever.encoders.readout import ContentIds

_TOKENS_PER_BATCH_CPU = 2048
_TOKENS_PER_BATCH_GPU = 65536
# Texts of a group have at least this share of the longest one's tokens.
_SIMILAR = 0.8


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
    tokenizer: str | None = None
    """Digest of the tokenizer; None where that of the weights covers it."""


class TextStates(NamedTuple):
    """What a backbone says of B texts, before anything is normalised, rounded or stored."""

    hidden_BKH: torch.Tensor
    """floating, on the device; anything where a text has fewer vectors."""
    valid_BK: torch.Tensor
    """bool on the CPU, the vectors that a text has: its first ones, at least one."""
    content: ContentIds | None = None
    """None for methods without sparse scores."""
    logits_BKG: torch.Tensor | None = None
    """floating, on the device, of the ids `content.gathered_BG`."""


class Encoder(ABC):
    """Texts to representations. A text's result does not depend on its batch."""

    def __init__(self, config: NeuralRetriever, preparer: Preparer, facts: ModelFacts) -> None:
        self.config = config
        self.preparer = preparer
        self.facts = facts
        self.tokens_per_batch = tokens_per_batch(facts.device)
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
        """Represent queries, each with its own K_q where `budgets` is given.

        Raises:
            ValueError: a query's vectors or impacts hold NaN or infinity; the message names it.
        """
        encoded = self.encode(self.preparer.prepare_queries(texts, budgets))
        refuse_queries(encoded, texts)
        return encoded

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Representations:
        """Represent passages."""
        return self.encode(self.preparer.prepare_passages(titles, texts))

    def encode(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent prepared texts, in their order, in batches filled by a token budget."""
        return self._in_batches(texts, lambda batch: [self.encode_batch(batch)])[0] if texts else self._empty()

    def _in_batches(
        self, texts: Sequence[PreparedText], encode: Callable[[Sequence[PreparedText]], list[Representations]]
    ) -> list[Representations]:
        """Return what `encode` makes of batches of the texts (at least one), each of its parts in the texts' order.

        Where the device has no memory for a batch, the encoder's batches have half as many tokens from then on.

        Raises:
            ValueError: it has none for a single text.
        """
        lengths = np.array([len(text.input_ids) for text in texts])
        waiting = list(token_budget_batches(lengths, self.tokens_per_batch))
        done: list[np.ndarray] = []
        encoded: list[list[Representations]] = []
        with Progress("encoding", len(texts), unit="texts", quiet=True) as progress:
            while waiting:
                batch = waiting[0]
                found = _unless_out_of_memory(encode, [texts[i] for i in batch])
                if found is None:
                    self.tokens_per_batch = self._smaller_budget(len(batch), int(lengths[batch].max()))
                    rest = np.concatenate(waiting)
                    waiting = [rest[rows] for rows in token_budget_batches(lengths[rest], self.tokens_per_batch)]
                    continue
                encoded.append(found)
                done.append(waiting.pop(0))
                progress.update(len(batch))
        self.cost = BatchCost(int(lengths.sum()), sum(len(batch) * int(lengths[batch].max()) for batch in done))
        order = np.argsort(np.concatenate(done), kind="stable")
        return [Representations.concatenate(parts).take(order) for parts in zip(*encoded, strict=True)]

    def _smaller_budget(self, rows: int, longest: int) -> int:
        """Return half the tokens of a batch of `rows` texts, the longest of so many tokens, that did not fit."""
        if rows == 1:
            raise ValueError(
                f"{self.facts.device} has no memory for a single text of {longest:,} tokens beside the model: lower "
                "the retriever's limits (text.max_passage_tokens, text.max_query_tokens), leave the GPU to one encoder "
                "alone, or use a larger one"
            )
        return rows * longest // 2

    @abstractmethod
    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent one batch."""

    def _empty(self) -> Representations:
        return Representations.of_vectors(np.zeros((0, self.facts.hidden_size), np.float16), [], [])


class BackboneEncoder(Encoder):
    """An encoder over one of the native backbones."""

    config: BackboneRetriever

    def __init__(self, config: BackboneRetriever, backbone: Backbone, preparer: Preparer) -> None:
        facts = ModelFacts(
            device=backbone.device,
            dtype=str(backbone.dtype).removeprefix("torch."),
            hidden_size=backbone.hidden_size,
            vocab_size=backbone.vocab_size,
            weights=backbone.weights_digest,
            tokenizer=preparer.vocabulary.digest(),
        )
        super().__init__(config, preparer, facts)
        self.backbone = backbone

    @abstractmethod
    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return the states of one batch, from which `encode_batch` makes representations.

        Gradients flow to the backbone's parameters unless the caller forbids them: training reads texts by this.
        """

    @classmethod
    @abstractmethod
    def make_preparer(cls, config: Any, vocabulary: Vocabulary) -> Preparer:
        """Return what prepares texts for `config`, given the backbone's tokenizer side."""

    @classmethod
    def load_preparer(cls, config: BackboneRetriever) -> Preparer:
        """Read the tokenizer, and what an adapter's folder says of its training; see `trained_for`."""
        from diffretriever.backbones import load_vocabulary
        from diffretriever.backbones.slot_layers import most_slots
        from diffretriever.backbones.source import resolve_adapter
        from diffretriever.encoders.trained_for import check_trained_for

        vocabulary = load_vocabulary(config.backbone.source, revision=config.backbone.revision)
        preparer = cls.make_preparer(config, vocabulary)
        check_trained_for(config, preparer)
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


def _unless_out_of_memory(
    encode: Callable[[Sequence[PreparedText]], list[Representations]], texts: Sequence[PreparedText]
) -> list[Representations] | None:
    """Return what `encode` makes of the texts; None if the device ran out of memory, which is then free again."""
    import torch

    try:
        return encode(texts)
    except torch.OutOfMemoryError:
        pass
    # Only here is the error gone, and with it the frames that hold the batch's tensors.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def tokens_per_batch(device: torch.device) -> int:
    """Return how many tokens, padding included, a batch has room for on a device."""
    return _TOKENS_PER_BATCH_CPU if device.type == "cpu" else _TOKENS_PER_BATCH_GPU


def token_budget_batches(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first, each batch at most `max_tokens` after padding.

    A single text longer than the budget makes a batch of its own. Longest first, so that a batch that does not fit
    in memory fails at once rather than at the end.

    Args:
        lengths: int array [N], tokens of each text.
        max_tokens: budget, rows times the longest row.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def similar_lengths(lengths: np.ndarray, least_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first: groups of texts with four fifths of the longest one's tokens or more.

    Shorter texts fill up a group that has fewer than `least_tokens`, for a small pass takes as long as a larger one.

    Args:
        lengths: int array [N], tokens of each text.
        least_tokens: rows times the longest row; only the last group may have fewer.
    """
    order = np.argsort(-lengths, kind="stable")
    descending = -lengths[order]
    start = 0
    while start < len(order):
        longest = max(1, -int(descending[start]))
        similar = int(np.searchsorted(descending, -_SIMILAR * longest, side="right"))
        end = max(similar, start + -(-least_tokens // longest))
        yield order[start:end]
        start = end
