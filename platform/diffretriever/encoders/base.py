"""The encoder interface: texts are prepared on the CPU, then represented on the backbone's device.

The two halves are separate objects so that a pipeline can prepare texts in tasks that load no weights.

Legend: B texts of a batch, K most vectors of a text in the batch, G ids whose logits are read, H hidden size, N texts,
M vectors that are read, m those read at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import torch

from diffretriever.backbones.cpu_tuning import is_small_pass
from diffretriever.backbones.device import Launched, Launcher
from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.progress import Progress
from diffretriever.representations import Representations, refuse_queries
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.retriever import BackboneRetriever, NeuralRetriever
from diffretriever.schemas.serve import READ_WORDS, Reading

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone, Vocabulary
    from diffretriever.encoders.reading import VectorReader
    from diffretriever.encoders.readout import ContentIds

T = TypeVar("T")

TOKENS_PER_BATCH_GPU = 16_384
"""On a GPU with room for them: enough to keep it busy, and a quarter of a block of the encode job with a large model. A
batch of a whole block would be padded to its longest text, so that sorting by length did nothing."""
_TOKENS_PER_BATCH_CPU = 2048
# Vectors whose logits are held at a time: 80 MB in fp32 for a vocabulary of 150,000.
_READ_AT_ONCE = 128
# Rows times the longest row, of texts that run without pads, in budgets of a batch.
_MOST_PADDED = 2
# Beyond as many texts, results are finished while the device works on later ones. A block of the encode job has fewer:
# its results are finished while the device works on the next block.
_MOST_UNFINISHED = 1024
# Texts of a group have at least this share of the longest one's tokens.
_SIMILAR = 0.8


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rest of the platform needs to know of an encoder's model."""

    device: torch.device
    dtype: str
    """Precision of the weights, such as `bfloat16`, as a retriever's `backbone.dtype` names it."""
    hidden_size: int
    """H of the vectors."""
    vocab_size: int | None
    """Size of the vocabulary that impacts point into; None without sparse scores."""
    weights: str
    """Digest of the weights, adapter included."""
    tokenizer: str | None = None
    """Digest of the tokenizer; None where that of the weights covers it."""


class TokenStates(NamedTuple):
    """The final hidden states of B texts in a pass, on the device."""

    hidden_BLH: torch.Tensor
    """floating, of all tokens, slots and pads among them."""
    own_BL: torch.Tensor
    """bool, the tokens that are the text's."""


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
    tokens: TokenStates | None = None
    """Of the text itself, where an encoder of slots was told to keep them."""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What texts took that were encoded by one call."""

    tokens: int
    """Real tokens, prompt and slots included."""
    padded_tokens: int
    """The same with padding; equal where texts are packed."""
    device_seconds: float
    """In which the device worked on them alone."""


class Encoded(NamedTuple):
    """Texts that a device is done with."""

    parts: list[Representations]
    """All texts, in their order: once, or once for each of several budgets."""
    cost: BatchCost


class Encoding:
    """Texts of which a device has been given batches."""

    def __init__(self) -> None:
        self._tokens = self._padded_tokens = 0
        self._batches: list[np.ndarray] = []
        self._launched: deque[Launched[list[Representations]]] = deque()
        self._results: list[tuple[list[Representations], float]] = []

    def add(
        self, texts_B: np.ndarray, launched: Launched[list[Representations]], tokens: int, padded_tokens: int
    ) -> None:
        """Take a batch that the device was given.

        Args:
            texts_B: numbers of its texts.
            launched: what makes their representations, once or for each of several budgets.
            tokens: all that its texts have.
            padded_tokens: the same with padding.
        """
        self._batches.append(texts_B)
        self._launched.append(launched)
        self._tokens += tokens
        self._padded_tokens += padded_tokens
        while sum(map(len, self._batches[len(self._results) :])) > _MOST_UNFINISHED:
            self._finish_oldest()

    def finish(self) -> Encoded:
        """Wait for the device, and return all texts, which must have been given to it; to be called once."""
        while self._launched:
            self._finish_oldest()
        results, self._results = self._results, []
        cost = BatchCost(self._tokens, self._padded_tokens, sum(seconds for _, seconds in results))
        if len(self._batches) == len(self._batches[0]) == 1:
            # A query alone, whose answer is waited for.
            return Encoded(results[0][0], cost)
        order_N = np.argsort(np.concatenate(self._batches), kind="stable")
        parts = zip(*(made for made, _ in results), strict=True)
        return Encoded([Representations.concatenate(part).take(order_N) for part in parts], cost)

    def _finish_oldest(self) -> None:
        self._results.append(self._launched.popleft().result())


class Encoder(ABC):
    """Texts to representations. A text's result does not depend on its batch.

    Several threads may encode at once. Their batches take turns on the device; all else that they do goes on meanwhile.
    """

    is_packed = False
    """Whether the texts of a batch run without pads."""

    def __init__(self, config: NeuralRetriever, preparer: Preparer, facts: ModelFacts) -> None:
        self.config = config
        self.preparer = preparer
        self.facts = facts
        self.tokens_per_batch = tokens_per_batch(facts.device)
        self._launcher = Launcher(facts.device)

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
        with Progress("encoding", len(texts), unit="texts", quiet=True) as progress:
            return self.launch(texts, progress.update)().parts[0]

    def launch(
        self, texts: Sequence[PreparedText], told: Callable[[int], object] | None = None
    ) -> Callable[[], Encoded]:
        """Give the device the batches that `encode` makes of prepared texts; return what waits for it, once.

        Args:
            texts: prepared.
            told: is told of how many texts the device was given, batch after batch.

        Raises:
            ValueError: the device has no memory for a single text.
        """
        return self._in_batches(texts, self._begin_whole, 1, told)

    def _begin_whole(self, texts: Sequence[PreparedText]) -> Callable[[], list[Representations]]:
        finish = self.begin_batch(texts)
        return lambda: [finish()]

    def _in_batches(
        self,
        texts: Sequence[PreparedText],
        begin: Callable[[Sequence[PreparedText]], Callable[[], list[Representations]]],
        n_parts: int,
        told: Callable[[int], object] | None = None,
    ) -> Callable[[], Encoded]:
        """Launch batches of the texts; return what waits for them.

        Where the device has no memory for a batch, the encoder's batches have half as many tokens from then on.

        Args:
            texts: prepared.
            begin: begins with a batch of them; returns what makes so many parts of its results.
            n_parts: how many.
            told: as of `launch`.

        Raises:
            ValueError: it has none for a single text.
        """
        if not texts:
            return lambda: Encoded([self._empty()] * n_parts, BatchCost(0, 0, 0.0))
        lengths = np.array([len(text.input_ids) for text in texts])
        encoding = Encoding()
        waiting = self._batches(lengths)
        while waiting:
            batch = waiting[0]
            computed = self._computed(lengths[batch])
            is_small = is_small_pass(computed, self.facts.hidden_size)
            launched = _unless_out_of_memory(
                self._launcher, partial(begin, [texts[i] for i in batch]), is_small=is_small
            )
            if launched is None:
                # Another thread may have found less room.
                self.tokens_per_batch = min(self.tokens_per_batch, self._smaller_budget(lengths[batch]))
                rest = np.concatenate(waiting)
                waiting = [rest[rows] for rows in self._batches(lengths[rest])]
                continue
            encoding.add(waiting.pop(0), launched, int(lengths[batch].sum()), computed)
            if told is not None:
                told(len(batch))
        return encoding.finish

    def _batches(self, lengths: np.ndarray) -> list[np.ndarray]:
        batches = packed_batches if self.is_packed else token_budget_batches
        return list(batches(lengths, self.tokens_per_batch))

    def _computed(self, lengths: np.ndarray) -> int:
        """Return the tokens that a batch of texts of these lengths computes, with its padding where there is any."""
        return int(lengths.sum()) if self.is_packed else len(lengths) * int(lengths.max())

    def _smaller_budget(self, lengths: np.ndarray) -> int:
        """Return half the tokens of a batch, of texts of these lengths, that did not fit."""
        if len(lengths) == 1:
            raise ValueError(
                f"{self.facts.device} has no memory for a single text of {lengths[0]:,} tokens beside the model: lower "
                "the retriever's limits (text.max_passage_tokens, text.max_query_tokens), leave the GPU to one encoder "
                "alone, or use a larger one"
            )
        return self._computed(lengths) // 2

    @abstractmethod
    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent one batch."""

    def begin_batch(self, texts: Sequence[PreparedText]) -> Callable[[], Representations]:
        """Have the device begin with one batch; return what represents it once the device is done.

        An encoder that has nothing to do after the device, or no device, represents the batch here.
        """
        encoded = self.encode_batch(texts)
        return lambda: encoded

    def _at_once(self, texts: Sequence[PreparedText]) -> Representations:
        """Return what is begun with one batch, waited for."""
        encoded, _ = self._launcher.launch(partial(self.begin_batch, texts)).result()
        return encoded

    def freeze(self) -> None:  # noqa: B027 (some have nothing to do)
        """Get ready for passes without gradients."""

    def compile_layers(self) -> None:
        """Compile the model's layers; see `Backbone.compile_layers`.

        Raises:
            ValueError: this encoder's cannot be compiled.
        """
        raise ValueError(
            f"{self.config.title}: only methods that read whole texts by a backbone of ours can be compiled"
        )

    @property
    def can_record(self) -> bool:
        """Whether `record_passes` is for this encoder."""
        return False

    def record_passes(self) -> None:
        """Record passes over few tokens for replay, such as those of single queries; see `Backbone.record_passes`.

        Raises:
            ValueError: this encoder's cannot be recorded.
        """
        raise ValueError(f"{self.config.title}: only passes over whole texts by a backbone of ours can be recorded")

    def read(self, vectors_MH: np.ndarray, words: int = READ_WORDS) -> list[Reading]:
        """Return what stored vectors say in words of the whole vocabulary; see `encoders.reading`.

        Args:
            vectors_MH: floating [M, H], of queries or passages.
            words: most words for each of them.

        Raises:
            ValueError: this encoder's cannot be read: its config says so (`is_readable`).
        """
        raise ValueError(f"{self.config.title}: only masked, generated and pooled retrievers have readable vectors")

    def _empty(self) -> Representations:
        return Representations.of_vectors(np.zeros((0, self.facts.hidden_size), np.float16), [], [])


class BackboneEncoder(Encoder):
    """An encoder over one of the native backbones."""

    config: BackboneRetriever
    reads_whole_texts: ClassVar[bool] = True
    """All passes read whole texts, none a token more of them."""

    def __init__(self, config: BackboneRetriever, backbone: Backbone, preparer: Preparer) -> None:
        facts = ModelFacts(
            device=backbone.device,
            dtype=backbone.precision,
            hidden_size=backbone.hidden_size,
            vocab_size=backbone.vocab_size,
            weights=backbone.weights_digest,
            tokenizer=preparer.vocabulary.digest(),
        )
        super().__init__(config, preparer, facts)
        self.backbone = backbone
        self.is_packed = backbone.is_packed

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """See the base class."""
        return self._at_once(texts)

    @abstractmethod
    def begin_batch(self, texts: Sequence[PreparedText]) -> Callable[[], Representations]:
        """See the base class."""

    @abstractmethod
    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return the states of one batch, from which representations are made.

        Gradients flow to the backbone's parameters unless the caller forbids them: training reads texts by this.
        """

    def freeze(self) -> None:
        """See the base class."""
        self.backbone.freeze()

    def compile_layers(self) -> None:
        """See the base class."""
        if not self.reads_whole_texts:
            super().compile_layers()
        self.backbone.compile_layers()

    @property
    def can_record(self) -> bool:
        """See the base class."""
        return self.reads_whole_texts and not self.backbone.adapts_slots_only

    def record_passes(self) -> None:
        """See the base class."""
        if not self.reads_whole_texts:
            super().record_passes()
        self.backbone.record_passes()

    def read(self, vectors_MH: np.ndarray, words: int = READ_WORDS) -> list[Reading]:
        """See the base class."""
        starts = range(0, len(vectors_MH), _READ_AT_ONCE)
        parts = (vectors_MH[start : start + _READ_AT_ONCE] for start in starts)
        launched = (self._launcher.launch(partial(self._begin_reading, part, words)) for part in parts)
        return [reading for each in launched for reading in each.result()[0]]

    def _begin_reading(self, vectors_mH: np.ndarray, words: int) -> Callable[[], list[Reading]]:
        return self._reader.begin(vectors_mH, words)

    @cached_property
    def _reader(self) -> VectorReader:
        from diffretriever.encoders.reading import VectorReader

        return VectorReader(self.backbone)

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
    launcher: Launcher, begin: Callable[[], Callable[[], T]], *, is_small: bool
) -> Launched[T] | None:
    """Return a batch, launched; None if the device ran out of memory, which is then free again."""
    try:
        return launcher.launch(begin, is_small=is_small)
    except torch.OutOfMemoryError:
        pass
    # Only here is the error gone, and with it the frames that hold the batch's tensors.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def tokens_per_batch(device: torch.device) -> int:
    """Return how many tokens, padding included, a batch has room for on a device."""
    return _TOKENS_PER_BATCH_CPU if device.type == "cpu" else TOKENS_PER_BATCH_GPU


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


def packed_batches(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first, each batch at most `max_tokens`, of texts that run without pads.

    A single text longer than the budget makes a batch of its own. What is kept beside the pass has pads even so (ids,
    states to be pooled, the cache of decoding): short texts that a long one would pad to more than twice the budget
    wait for the next batch.

    Args:
        lengths: int array [N], tokens of each text.
        max_tokens: budget of a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = lengths[order].cumsum()
    start, used = 0, 0
    while start < len(order):
        rows = int(np.searchsorted(ends, used + max_tokens, side="right")) - start
        rows = max(1, min(rows, _MOST_PADDED * max_tokens // max(1, int(lengths[order[start]]))))
        yield order[start : start + rows]
        start += rows
        used = int(ends[start - 1])


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
