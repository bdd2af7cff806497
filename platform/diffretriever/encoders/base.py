"""The encoder interface: texts are prepared on the CPU, then encoded in batches on the backbone's device.

Preparers are separate objects, so that pipelines can prepare texts in tasks that load no weights.

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
from diffretriever.core.progress import Progress, warn_once
from diffretriever.encoders.batching import token_batches, tokens_per_batch
from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.schemas.retriever import BackboneRetriever, NeuralRetriever
from diffretriever.schemas.serve import READ_WORDS, Reading
from diffretriever.vectors.representations import Representations, refuse_queries

if TYPE_CHECKING:
    from diffretriever.backbones.base import Backbone
    from diffretriever.encoders.logit_lens import LogitLens
    from diffretriever.encoders.readout import TextStates

# Vectors whose logits are in memory at a time: 80 MB in fp32 for a vocabulary of 150,000.
_READ_BATCH = 128
# Batches queued on the device while the host processes an earlier one, to keep the device busy.
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of an encoder's model."""

    device: torch.device
    dtype: str
    """Precision of the weights, such as `bfloat16`; same values as `backbone.dtype`."""
    hidden_size: int
    """H of the vectors."""
    vocab_size: int | None
    """Size of the vocabulary of the impacts; None without sparse scores."""
    weights: str
    """Digest of the weights, adapter included."""
    tokenizer: str | None = None
    """Digest of the tokenizer; None if `weights` covers it."""


class Encoded(NamedTuple):
    """Representations of submitted texts, with counts and times."""

    parts: list[Representations]
    """All texts in input order, once for each budget."""
    tokens: int
    """Real tokens, prompt and slots included."""
    padded_tokens: int
    """Tokens with padding; equal to `tokens` for packed texts."""
    device_seconds: float
    """Time that the device spent on these texts."""


class Submitted:
    """Batches that run on a device. Their results are made in order, without the device's lock."""

    def __init__(self, encoder: Encoder, budgets: int) -> None:
        self._encoder, self._budgets = encoder, budgets
        self._rows: list[np.ndarray] = []
        self._launched: deque[tuple[list[PreparedText], Launched[Any]]] = deque()
        self._parts: list[list[Representations]] = []
        self._tokens = self._padded_tokens = 0
        self._seconds = 0.0

    def add(
        self, rows_B: np.ndarray, texts: list[PreparedText], launched: Launched[Any], tokens: int, padded_tokens: int
    ) -> None:
        """Add a launched batch. If more than two are in flight, wait for the oldest one."""
        self._rows.append(rows_B)
        self._launched.append((texts, launched))
        self._tokens += tokens
        self._padded_tokens += padded_tokens
        if len(self._launched) > _IN_FLIGHT:
            self._finish_oldest()

    def result(self) -> Encoded:
        """Wait for the device and return the results of all texts. Call it once."""
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
    """Turns texts into representations, independently of their batch. It is thread-safe.

    `encode_batch` runs on the device; `represent` runs on the CPU.
    """

    is_packed = False
    """Whether the texts of a batch run without padding."""
    whole_text_backbone: Backbone | None = None
    """The native backbone if each pass runs whole texts through it; only such passes can be compiled or captured."""

    def __init__(self, config: NeuralRetriever, preparer: Preparer, facts: ModelFacts) -> None:
        self.config = config
        self.preparer = preparer
        self.facts = facts
        self.tokens_per_batch = tokens_per_batch(facts.device)
        self._queue = DeviceQueue(facts.device)

    @classmethod
    @abstractmethod
    def load_preparer(cls, config: Any) -> Preparer:
        """Return the preparer of `config`, without loading weights."""

    @classmethod
    @abstractmethod
    def load(cls, config: Any, device: str) -> Self:
        """Load the model of `config` onto `device`; see `load_encoder`."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[PreparedText]) -> Any:
        """Encode one batch on the device and return the input of `represent`.

        Copy tensors to the CPU with `backbones.device.to_host`, which does not wait for the GPU.
        """

    def represent(self, texts: Sequence[PreparedText], computed: Any) -> Representations:
        """Turn the completed output of `encode_batch` into representations. Default: return it unchanged."""
        representations: Representations = computed
        return representations

    def encode_budgets(self, texts: Sequence[PreparedText], budgets: Sequence[int]) -> list[Any]:
        """Encode one batch once for each budget of nested slots. Without budgets, encode it once, as prepared."""
        assert not budgets, "only nested slots have several budgets"
        return [self.encode_batch(texts)]

    def encode_queries(self, texts: Sequence[str], budgets: Sequence[int] | None = None) -> Representations:
        """Encode queries; `budgets` sets the K_q of each.

        Raises:
            ValueError: A query's vectors or impacts contain NaN or infinity.
        """
        encoded = self.encode(self.preparer.prepare_queries(texts, budgets))
        refuse_queries(encoded, texts)
        return encoded

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Representations:
        """Encode passages."""
        return self.encode(self.preparer.prepare_passages(titles, texts))

    def encode(self, texts: Sequence[PreparedText]) -> Representations:
        """Encode prepared texts in batches of limited tokens; results keep the input order."""
        with Progress("encoding", len(texts), unit="texts", quiet=True) as progress:
            return self.submit(texts, on_progress=progress.update).result().parts[0]

    def submit(
        self,
        texts: Sequence[PreparedText],
        budgets: Sequence[int] = (),
        on_progress: Callable[[int], object] | None = None,
    ) -> Submitted:
        """Launch the batches of prepared texts. Call `result` on the returned object to wait for them.

        If a batch does not fit in device memory, this and later batches have half the tokens.

        Args:
            texts: texts, prepared with the largest of `budgets`.
            budgets: budgets of nested slots, each of which gives a result; empty: encode texts as prepared.
            on_progress: called with the number of texts of each batch.

        Raises:
            ValueError: A single text does not fit in device memory.
        """
        lengths_N = np.array([len(text.input_ids) for text in texts], np.int64)
        launched: Launched[Any] | None
        submitted = Submitted(self, len(budgets))
        remaining = self._batches(lengths_N)
        while remaining:
            rows_B = remaining[0]
            lengths_B = lengths_N[rows_B]
            padded = int(lengths_B.sum()) if self.is_packed else len(lengths_B) * int(lengths_B.max())
            batch = [texts[row] for row in rows_B]
            try:
                small = is_small_pass(padded, self.facts.hidden_size)
                launched = self._queue.launch(self.encode_budgets, batch, budgets, is_small=small)
            except torch.OutOfMemoryError:
                launched = None
            # Outside of `except`: the error's frames, which keep the batch's tensors in memory, are freed.
            if launched is None:
                self._halve(lengths_B, padded)
                rest = np.concatenate(remaining)
                remaining = [rest[rows] for rows in self._batches(lengths_N[rest])]
                continue
            del remaining[0]
            submitted.add(rows_B, batch, launched, int(lengths_B.sum()), padded)
            if on_progress is not None:
                on_progress(len(batch))
        return submitted

    def _batches(self, lengths_N: np.ndarray) -> list[np.ndarray]:
        return list(token_batches(lengths_N, self.tokens_per_batch, packed=self.is_packed))

    def _halve(self, lengths_B: np.ndarray, padded: int) -> None:
        if len(lengths_B) == 1:
            raise ValueError(
                f"{self.facts.device} has no memory for a single text of {lengths_B[0]:,} tokens: lower the "
                "retriever's limits (text.max_passage_tokens, text.max_query_tokens), run only one encoder on the GPU, "
                "or use a larger GPU"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        # Another thread may have lowered it further.
        self.tokens_per_batch = min(self.tokens_per_batch, padded // 2)

    def freeze(self) -> None:  # noqa: B027 (some have nothing to do)
        """Prepare for inference without gradients."""

    @property
    def can_record(self) -> bool:
        """Whether this encoder supports `record_passes`."""
        return self.whole_text_backbone is not None and not self.whole_text_backbone.adapts_slots_only

    def compile_layers(self) -> None:
        """Compile the model's layers; see `Backbone.compile_layers`. Raises ValueError if it cannot."""
        self._check_whole_texts("compiled").compile_layers()

    def record_passes(self) -> None:
        """Capture short passes as CUDA graphs; see `Backbone.record_passes`. Raises ValueError if it cannot."""
        self._check_whole_texts("recorded").record_passes()

    def _check_whole_texts(self, action: str) -> Backbone:
        if self.whole_text_backbone is None:
            raise ValueError(f"{self.config.title}: only passes of native backbones over whole texts can be {action}")
        return self.whole_text_backbone

    def read(self, vectors_MH: np.ndarray, words: int = READ_WORDS) -> list[Reading]:
        """Return up to `words` words that each vector predicts; `vectors_MH` is floating [M, H].

        Raises:
            ValueError: This encoder's vectors cannot be read (`is_readable` of its config).
        """
        raise ValueError(f"{self.config.title}: only masked, generated and pooled retrievers have readable vectors")


class BackboneEncoder(Encoder):
    """An encoder over a native backbone."""

    config: BackboneRetriever
    preparer_class: ClassVar[Callable[..., Preparer]]
    """Makes the preparer from the backbone's vocabulary and the config."""

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
        self.backbone = self.whole_text_backbone = backbone
        self.is_packed = backbone.is_packed

    @abstractmethod
    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return the states of one batch, from which representations are made; training uses it with gradients."""

    def freeze(self) -> None:
        """See the base class."""
        self.backbone.freeze()

    def read(self, vectors_MH: np.ndarray, words: int = READ_WORDS) -> list[Reading]:
        """See the base class."""
        readings: list[Reading] = []
        for start in range(0, len(vectors_MH), _READ_BATCH):
            launched = self._queue.launch(self._logit_lens.top_logits, vectors_MH[start : start + _READ_BATCH], words)
            launched.wait()
            readings += self._logit_lens.to_words(*launched.output, words)
        return readings

    @cached_property
    def _logit_lens(self) -> LogitLens:
        from diffretriever.encoders.logit_lens import LogitLens

        return LogitLens(self.backbone)

    @classmethod
    def load_preparer(cls, config: BackboneRetriever) -> Preparer:
        """Load the tokenizer and check that the adapter was trained for `config`; see `adapter_compatibility`.

        Logs other lengths or content words than in training, once per process.

        Raises:
            ValueError: The adapter was trained for another retriever, or for fewer slots than the budget's.
        """
        from diffretriever.backbones.loader import load_vocabulary
        from diffretriever.backbones.slot_layers import read_max_slots
        from diffretriever.backbones.source import resolve_adapter
        from diffretriever.encoders.adapter_compatibility import check_adapter_fits

        backbone = config.backbone
        preparer = cls.preparer_class(load_vocabulary(backbone.source, revision=backbone.revision), config)
        if backbone.adapter is not None:
            folder = resolve_adapter(backbone.adapter, backbone.adapter_revision, weights=False)
            preparer.notices = check_adapter_fits(config, preparer, folder)
            for notice in preparer.notices:
                warn_once(f"warning: {notice}")
            preparer.max_slots = read_max_slots(folder)
            slots = max(preparer.default_slots("query"), preparer.default_slots("passage"))
            if preparer.max_slots is not None and slots > preparer.max_slots:
                raise ValueError(
                    f"the budget has up to {slots} slots, but the adapter {backbone.adapter} vectors for "
                    f"{preparer.max_slots}: set a smaller budget"
                )
        return preparer

    @classmethod
    def load(cls, config: BackboneRetriever, device: str) -> Self:
        """Load the tokenizer, the backbone and its adapter."""
        from diffretriever.backbones.loader import load_backbone

        # First, so that an adapter of another prompt is rejected before weights are read.
        preparer = cls.load_preparer(config)
        backbone = load_backbone(**config.backbone.model_dump(), device=device)
        return cls(config, backbone, preparer)
