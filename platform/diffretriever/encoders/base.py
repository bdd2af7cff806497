"""The encoder interface: texts are prepared on the CPU, then encoded in batches on the backbone's device.

The two halves are separate objects so that a pipeline can prepare texts in tasks that load no weights.

Legend: B texts of a batch, H hidden size, N texts, M vectors that are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch

from diffretriever.backbones.cpu_tuning import is_small_pass
from diffretriever.backbones.device import DeviceQueue, Launched
from diffretriever.core.progress import Progress
from diffretriever.encoders.batching import token_batches, tokens_per_batch
from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.schemas.retriever import BackboneRetriever, NeuralRetriever
from diffretriever.schemas.serve import READ_WORDS, Reading
from diffretriever.vectors.representations import Representations, refuse_queries

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone
    from diffretriever.encoders.reading import VectorReader
    from diffretriever.encoders.readout import TextStates

# Vectors whose logits are in memory at a time: 80 MB in fp32 for a vocabulary of 150,000.
_READ_AT_ONCE = 128
# Batches that wait on a device while the results of an earlier one are made: the device's queue is never empty.
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of an encoder's model that the rest of the platform needs."""

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


class Encoded(NamedTuple):
    """Texts that a device is done with."""

    parts: list[Representations]
    """All texts, in their order: once, or once for each of several budgets."""
    tokens: int
    """Real tokens, prompt and slots included."""
    padded_tokens: int
    """The same with padding; equal where texts are packed."""
    device_seconds: float
    """In which the device worked on them alone."""


class Submitted:
    """Texts whose batches a device has been given. Results are made in order, without the device's lock."""

    def __init__(self, encoder: Encoder, budgets: int) -> None:
        """Take no texts yet, for this number of budgets; 0: texts are encoded as they are prepared."""
        self._encoder, self._budgets = encoder, budgets
        self._rows: list[np.ndarray] = []
        self._launched: deque[tuple[list[PreparedText], Launched[Any]]] = deque()
        self._parts: list[list[Representations]] = []
        self._tokens = self._padded_tokens = 0
        self._seconds = 0.0

    def add(
        self, rows_B: np.ndarray, texts: list[PreparedText], launched: Launched[Any], tokens: int, padded_tokens: int
    ) -> None:
        """Take a batch, its rows among all texts; make the results of the oldest one if several are in flight."""
        self._rows.append(rows_B)
        self._launched.append((texts, launched))
        self._tokens += tokens
        self._padded_tokens += padded_tokens
        if len(self._launched) > _IN_FLIGHT:
            self._finish_oldest()

    def result(self) -> Encoded:
        """Wait for the device, and return all texts; to be called once."""
        while self._launched:
            self._finish_oldest()
        if not self._rows:
            empty = Representations.of_vectors(np.zeros((0, self._encoder.facts.hidden_size), np.float16), [], [])
            parts = [empty] * max(1, self._budgets)
        elif len(self._rows) == len(self._rows[0]) == 1:
            parts = self._parts[0]
        else:
            order_N = np.argsort(np.concatenate(self._rows), kind="stable")
            parts = [Representations.concatenate(part).take(order_N) for part in zip(*self._parts, strict=True)]
        return Encoded(parts, self._tokens, self._padded_tokens, self._seconds)

    def _finish_oldest(self) -> None:
        texts, launched = self._launched.popleft()
        self._seconds += launched.wait()
        self._parts.append([self._encoder.represent(texts, output) for output in launched.output])


class Encoder(ABC):
    """Texts to representations. A text's result does not depend on its batch, and several threads may encode at once.

    An encoder has two halves: `encode_batch` for the device, and `represent`, which may do without it.
    """

    is_packed = False
    """Whether the texts of a batch run without pads."""
    reads_whole_texts: ClassVar[bool] = False
    """Each pass reads whole texts by a backbone of ours, so that passes can be compiled and recorded."""

    def __init__(self, config: NeuralRetriever, preparer: Preparer, facts: ModelFacts) -> None:
        self.config = config
        self.preparer = preparer
        self.facts = facts
        self.tokens_per_batch = tokens_per_batch(facts.device)
        self._queue = DeviceQueue(facts.device)

    @classmethod
    @abstractmethod
    def load_preparer(cls, config: Any) -> Preparer:
        """Return what prepares texts for `config`, without loading any weights."""

    @classmethod
    @abstractmethod
    def load(cls, config: Any, device: str) -> Self:
        """Load the model of `config` onto `device`; see `load_encoder`."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[PreparedText]) -> Any:
        """Encode one batch on the device: return its representations, or the input of `represent`.

        On a GPU, tensors that go to the CPU are copied by `backbones.device.to_host`, which does not wait.
        """

    def represent(self, texts: Sequence[PreparedText], computed: Any) -> Representations:
        """Return the representations of a batch that the device is done with; `computed` is `encode_batch`'s."""
        found: Representations = computed
        return found

    def encode_budgets(self, texts: Sequence[PreparedText], budgets: Sequence[int]) -> list[Any]:
        """Encode one batch once for each of several numbers of nested slots; no budgets: once, as it is prepared."""
        assert not budgets, "only nested slots have several budgets"
        return [self.encode_batch(texts)]

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
            return self.submit(texts, on_progress=progress.update).result().parts[0]

    def submit(
        self,
        texts: Sequence[PreparedText],
        budgets: Sequence[int] = (),
        on_progress: Callable[[int], object] | None = None,
    ) -> Submitted:
        """Give the device the batches of prepared texts; `result` of the returned object waits for the last ones.

        Where the device has no memory for a batch, the encoder's batches have half as many tokens from then on; no
        memory for a single text is a `ValueError`.

        Args:
            texts: prepared, with the largest of `budgets`.
            budgets: of nested slots: numbers of slots to encode each text with; none: as it is prepared.
            on_progress: called with the number of texts of each batch.
        """
        lengths_N = np.array([len(text.input_ids) for text in texts], np.int64)
        launched: Launched[Any] | None
        submitted = Submitted(self, len(budgets))
        waiting = self._batches(lengths_N)
        while waiting:
            rows_B = waiting[0]
            lengths_B = lengths_N[rows_B]
            padded = int(lengths_B.sum()) if self.is_packed else len(lengths_B) * int(lengths_B.max())
            batch = [texts[row] for row in rows_B]
            try:
                small = is_small_pass(padded, self.facts.hidden_size)
                launched = self._queue.launch(self.encode_budgets, batch, budgets, is_small=small)
            except torch.OutOfMemoryError:
                launched = None
            # Only here is the error gone, and with it the frames that hold the batch's tensors.
            if launched is None:
                self._halve(lengths_B, padded)
                rest = np.concatenate(waiting)
                waiting = [rest[rows] for rows in self._batches(lengths_N[rest])]
                continue
            del waiting[0]
            submitted.add(rows_B, batch, launched, int(lengths_B.sum()), padded)
            if on_progress is not None:
                on_progress(len(batch))
        return submitted

    def _batches(self, lengths_N: np.ndarray) -> list[np.ndarray]:
        return list(token_batches(lengths_N, self.tokens_per_batch, packed=self.is_packed))

    def _halve(self, lengths_B: np.ndarray, padded: int) -> None:
        """Let batches have half the tokens of one that did not fit."""
        if len(lengths_B) == 1:
            raise ValueError(
                f"{self.facts.device} has no memory for a single text of {lengths_B[0]:,} tokens beside the model: "
                "lower the retriever's limits (text.max_passage_tokens, text.max_query_tokens), leave the GPU to one "
                "encoder alone, or use a larger one"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        # Another thread may have found less memory.
        self.tokens_per_batch = min(self.tokens_per_batch, padded // 2)

    def freeze(self) -> None:  # noqa: B027 (some have nothing to do)
        """Get ready for passes without gradients."""

    @property
    def can_record(self) -> bool:
        """Whether `record_passes` is for this encoder."""
        return False

    def compile_layers(self) -> None:
        """Compile the model's layers; see `Backbone.compile_layers`. Raises ValueError if it cannot."""
        self._whole_text_backbone("compiled").compile_layers()

    def record_passes(self) -> None:
        """Record passes over few tokens for replay; see `Backbone.record_passes`. Raises ValueError if it cannot."""
        self._whole_text_backbone("recorded").record_passes()

    def _whole_text_backbone(self, what: str) -> Backbone:
        raise ValueError(f"{self.config.title}: only passes over whole texts by a backbone of ours can be {what}")

    def read(self, vectors_MH: np.ndarray, words: int = READ_WORDS) -> list[Reading]:
        """Return at most `words` words that each stored vector predicts, floating [M, H]; see `encoders.reading`.

        Raises:
            ValueError: This encoder's vectors cannot be read (`is_readable` of its config).
        """
        raise ValueError(f"{self.config.title}: only masked, generated and pooled retrievers have readable vectors")


class BackboneEncoder(Encoder):
    """An encoder over one of the native backbones."""

    config: BackboneRetriever
    preparer_class: ClassVar[Callable[..., Preparer]]
    """Makes what prepares texts, given the backbone's vocabulary and the config."""
    reads_whole_texts = True

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

    @abstractmethod
    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return the states of one batch, from which representations are made.

        Gradients flow to the backbone's parameters unless the caller forbids them: training reads texts by this.
        """

    def freeze(self) -> None:
        """See the base class."""
        self.backbone.freeze()

    @property
    def can_record(self) -> bool:
        """See the base class."""
        return self.reads_whole_texts and not self.backbone.adapts_slots_only

    def _whole_text_backbone(self, what: str) -> Backbone:
        return self.backbone if self.reads_whole_texts else super()._whole_text_backbone(what)

    def read(self, vectors_MH: np.ndarray, words: int = READ_WORDS) -> list[Reading]:
        """See the base class."""
        readings: list[Reading] = []
        for start in range(0, len(vectors_MH), _READ_AT_ONCE):
            launched = self._queue.launch(self._reader.compute, vectors_MH[start : start + _READ_AT_ONCE], words)
            launched.wait()
            readings += self._reader.readings(*launched.output, words)
        return readings

    @cached_property
    def _reader(self) -> VectorReader:
        from diffretriever.encoders.reading import VectorReader

        return VectorReader(self.backbone)

    @classmethod
    def load_preparer(cls, config: BackboneRetriever) -> Preparer:
        """Read the tokenizer, and check the config against an adapter's training; see `trained_for`.

        Raises:
            ValueError: The adapter was trained for another retriever, or for fewer slots than the budget's.
        """
        from diffretriever.backbones import load_vocabulary
        from diffretriever.backbones.slot_layers import most_slots
        from diffretriever.backbones.source import resolve_adapter
        from diffretriever.encoders.trained_for import check_trained_for

        place = config.backbone
        preparer = cls.preparer_class(load_vocabulary(place.source, revision=place.revision), config)
        if place.adapter is not None:
            folder = resolve_adapter(place.adapter, place.adapter_revision, weights=False)
            check_trained_for(config, preparer, folder)
            preparer.most_slots = most_slots(folder)
            slots = max(preparer.default_slots("query"), preparer.default_slots("passage"))
            if preparer.most_slots is not None and slots > preparer.most_slots:
                raise ValueError(
                    f"the budget has up to {slots} slots, the adapter {place.adapter} vectors for "
                    f"{preparer.most_slots}: take a smaller budget"
                )
        return preparer

    @classmethod
    def load(cls, config: BackboneRetriever, device: str) -> Self:
        """Load the backbone, its adapter if there is one, and its tokenizer."""
        from diffretriever.backbones import load_backbone

        # First, as an adapter for another prompt is refused before any weights are read.
        preparer = cls.load_preparer(config)
        backbone = load_backbone(**config.backbone.model_dump(), device=device)
        return cls(config, backbone, preparer)
