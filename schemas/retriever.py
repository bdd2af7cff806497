"""Retriever configs: method, backbone, budget, prompt and lengths. Every index stores the config that encoded it.

Each config declares the capabilities of its method, and other code checks these, not the method. To add a method, add
a class here and to the unions at the end, and its encoder; or publish an `InstalledRetriever` in a package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveInt,
    SerializeAsAny,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from typing_extensions import TypeIs

from diffretriever.schemas.base import Model, suggest
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.installed import installed_encoder, names_installed
from diffretriever.schemas.language import ENGLISH, Language
from diffretriever.schemas.mode import Mode, lists_of, modes_of, unweighted

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float8"]
Side: TypeAlias = Literal["query", "passage"]
Readout: TypeAlias = Literal["states", "pooling"]
TitleJoin: TypeAlias = Literal["space", "period-space", "none"]
_INSTRUCTION = "{instruction}"


class BackboneConfig(Model):
    """Location, precision and attention kernel of the weights."""

    source: str
    """Folder, object-store URI, hub id, or `minilm` for the embedded default."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None: the default branch."""
    dtype: Dtype = "auto"
    """Precision of the weights. `auto`: bfloat16 on a GPU, and on a CPU with bfloat16 instructions (x86 AVX-512 or
    AMX), otherwise float32. `float8`: e4m3 weights and activations in the layers' products, bfloat16 elsewhere; halves
    the products' time on GPUs of compute capability 8.9 and later (L40S, H100). Slow on CPUs; not for training."""
    attention: Literal["auto", "packed", "sdpa"] = "auto"
    """Attention kernel. `packed`: sequences concatenated without padding. `auto`: packed on a GPU in half precision, on
    a CPU in bfloat16, and with `adapter_on: slots`; otherwise SDPA."""
    adapter: str | None = None
    """LoRA adapter in PEFT format on top of the weights: folder, object-store URI, hub id, or `minilm`
    for the embedded one."""
    adapter_revision: str | None = None
    """Branch, tag or commit of the adapter on the hub."""
    adapter_head: Literal["include", "drop"] = "include"
    """Whether to load an adapter's weights for the output head, which the authors' LLaDA adapters contain by accident.
    Affects sparse scores only."""
    merge_adapter: bool = True
    """Merge the adapter into the weights at load: faster, with the same results up to rounding."""
    accepted_fields: tuple[str, ...] = ()
    """Fields of the checkpoint's config.json to ignore; other unknown fields are errors."""


class PromptConfig(Model):
    """The retrieval prompt around a text (paper Table 1)."""

    variant: Literal["paper", "one", "few", "three", "bare"] = "paper"
    """`paper`: one word for K=1, a few words for K>1. `three`: the original PromptReps phrasing.
    `bare`: no words at all, only the text and its slots."""
    colon: bool = False
    """Write a colon after `is`/`are` in the assistant's prefix, as in the authors' code; the paper has none."""


class TextConfig(Model):
    """Join of title and text, and maximum lengths in subword tokens."""

    title_join: TitleJoin = "space"
    """Separator of title and text; `none` omits the title."""
    max_query_tokens: PositiveInt = 512
    """Maximum tokens of a query."""
    max_passage_tokens: PositiveInt = 512
    """Maximum tokens of a passage, with its title."""
    length_semantics: Literal["text", "total"] = "text"
    """Tokens that both limits count: of the text, or of text and prompt. Slots and tail are excluded."""


CONTENT_WORDS: dict[str, dict[str, bool]] = {
    "words": {"subwords": False, "fold_space_variants": False},
    "pieces": {"subwords": True, "fold_space_variants": False},
    "folded": {"subwords": False, "fold_space_variants": True},
}
"""Named filters. `words`: whole words (paper). `pieces`: all subwords of a word (authors' code). `folded`: whole words
with and without a leading space (this project)."""


class ContentWordsConfig(Model):
    """The content-word filter of sparse vectors (paper §3.3), also given by a name of `CONTENT_WORDS`.

    In large vocabularies, most words are a single token only with a leading space: `words` keeps about 40 %.
    """

    subwords: bool = False
    """Keep all subwords of a content word, as in the authors' code; the paper removes fragments."""
    fold_space_variants: bool = False
    """Merge a word's token with a leading space (` dog`) into the plain one (`dog`); the larger weight counts."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        if not isinstance(values, str):
            return values
        if values not in CONTENT_WORDS:
            raise ValueError(f"unknown filter '{values}'.{suggest(values, CONTENT_WORDS)}")
        return CONTENT_WORDS[values]


class OnCollection(Model):
    """Settings that differ for one collection. Unset fields keep their general value."""

    query_instruction: str | None = None
    """Task instruction that replaces the general one in the query prompt."""
    passage_instruction: str | None = None
    """Task instruction of passages, for the few tasks that have one."""
    max_query_tokens: PositiveInt | None = None
    max_passage_tokens: PositiveInt | None = None


ASKED_BY = frozenset({"default_mode", "default_selector"})
"""Query-time fields: defaults of a search, which change no stored vector."""
_WEIGHTS_FROM = frozenset(
    ("source", "revision", "attention", "adapter", "adapter_revision", "merge_adapter", "accepted_fields")
)
"""Fields of a backbone that locate or run its weights; a digest identifies the weights themselves."""


class RetrieverBase(Model):
    """Base of retriever configs, with the capabilities of a method."""

    modes: ClassVar[tuple[Mode, ...]]
    """Scores of the method; the last one is the default if `default_mode` is unset."""
    has_weights: ClassVar[bool] = True
    """Whether a model encodes texts, which needs a `backbone`. False: only texts are stored."""
    has_slots: ClassVar[bool] = False
    """Whether vectors come from mask slots, whose numbers are the `budget`."""
    has_query_budget: ClassVar[bool] = False
    """Whether each query can have its own number of vectors."""
    is_readable: ClassVar[bool] = False
    """Whether the output head can predict tokens from the vectors, which are normalised final states."""
    is_trainable: ClassVar[bool] = False
    """Whether the retriever can be fine-tuned, or be the teacher of a training."""
    extra_package: ClassVar[str | None] = None
    """Python package that the method needs in addition to the plain installation."""

    default_mode: Mode | None = None
    """Default scoring mode, such as dense+0.3bm25; None: the last of the retriever's own scores."""
    language: Language = ENGLISH
    """Language of the texts, which sets the words of BM25 and of sparse scores: ISO 639-1 code, such as zh."""

    @model_validator(mode="after")
    def _check_default_mode(self) -> Self:
        if self.default_mode is not None and unweighted(self.default_mode) not in self.offered_modes:
            raise ValueError(
                f"default_mode: this retriever has no {self.default_mode} scores."
                f"{suggest(self.default_mode, self.offered_modes)}"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that stored vectors depend on, as JSON values, without the digest of the weights."""
        # Only sparse scores and BM25 depend on words.
        words = set() if "sparse" in self.modes else {"language"}
        values = self.model_dump(mode="json", exclude={*ASKED_BY, *words})
        if self.has_weights:
            values["backbone"] = {
                name: value for name, value in values["backbone"].items() if name not in _WEIGHTS_FROM
            }
        return values

    @property
    def title(self) -> str:
        """Readable name: the method, the model and the main settings."""
        backbone: BackboneConfig = getattr(self, "backbone", BackboneConfig(source=""))
        parts = [getattr(self, "method", ""), backbone.source, *(["+", backbone.adapter] if backbone.adapter else [])]
        return " ".join(filter(None, parts))

    def max_vectors(self, side: Side) -> int:
        """Return the maximum number of vectors per text; 0 for a method without vectors."""
        return 1

    def on(self, collection: str) -> Self:
        """Return the retriever with the settings for a collection, given by name."""
        return self

    @property
    def ranked_by(self) -> Mode:
        """Default scoring mode."""
        return self.default_mode or self.modes[-1]

    @property
    def reported_modes(self) -> tuple[Mode, ...]:
        """Default scoring modes of runs: the retriever's scores and its default mode."""
        return tuple(dict.fromkeys((*self.modes, self.ranked_by)))

    @property
    def offered_modes(self) -> tuple[Mode, ...]:
        """Scoring modes of its indexes, without weights: its scores, BM25, and their sums."""
        return modes_of({"bm25", *[name for mode in self.modes for name in lists_of(mode)]})

    @property
    def has_unit_vectors(self) -> bool:
        """Whether vectors are stored with length 1."""
        return True


class PromptedRetriever(RetrieverBase):
    """Base of retrievers with a retrieval prompt and sparse scores."""

    modes = ("dense", "sparse", "hybrid")
    has_query_budget = True
    is_readable = True
    is_trainable = True

    backbone: BackboneConfig
    """The language model; its fields are below."""
    prompt: PromptConfig = PromptConfig()
    text: TextConfig = TextConfig()
    content_words: ContentWordsConfig = ContentWordsConfig()
    sparse_topk: PositiveInt | None = None
    """Maximum impacts per text; the authors keep 128 or 256."""
    sparse_rounding: Literal["none", "trunc100", "round100"] = "none"
    """Rounding of impacts. The authors' code multiplies them by 100 and truncates or rounds; the paper does not."""


class MaskedRetriever(PromptedRetriever):
    """DiffRetriever: K mask slots after a retrieval prompt, encoded in one bidirectional pass (paper §3.2)."""

    has_slots = True

    method: Literal["masked"] = "masked"
    budget: Budget = Budget(1, 1)
    """Number of query and passage slots, or the path of a sweep's selection.json."""
    read_offset: Literal[0, -1] = 0
    """Position of a slot's state, relative to the slot. 0: the paper. -1: Dream's decoding."""
    default_selector: str = "rule"
    """Selector of K_q for queries with the budget `adaptive`. `rule`: by query length (paper). `fixed:4`: always 4, for
    retrievers on which no selector measured better."""
    readout: Readout = "states"
    """Slot vector before normalisation. `states`: the slot's state h, as in the paper. `pooling`: the mean state of all
    other tokens plus R p. For slot i of K, p is the mean state of the i-th of K equal parts of the text, weighted by
    softmax(h A x) over its states x. Training learns R and A, starting from the identity. Without an adapter, p is the
    plain mean of the part, without R."""
    adapter_on: Literal["all", "slots"] = "all"
    """Tokens that the adapter affects. `slots`: only slots, so that the text's states, and their mean, are those of the
    backbone without the adapter. Needs `nested_slots`; such an adapter is not merged."""
    tail_length: Literal[0, 1, 3] = 3
    """Tokens after the slots. 3: closing quote, turn end, end of sequence (paper Eq. 1). 1: end of sequence."""
    slot_positions: Literal["natural", "spread"] = "natural"
    """Position ids of slots. `spread`: far apart, for encoders with absolute positions that were not trained to fill
    slots."""
    nested_slots: bool = False
    """Let slot i attend to the text and to slots 1 to i, and no other token to slots. The first k vectors of a text are
    then those of budget k, so one encoding serves all smaller budgets. With `readout: pooling`, vectors depend on k,
    but one pass still computes all. For backbones trained with this mask."""
    steps: PositiveInt = 1
    """Forward passes, S. With S > 1, each pass fills the slots of lowest entropy (paper App. A). Use an adapter with
    the S of its training."""
    schedule: Literal["time-grid", "even"] = "time-grid"
    """Number of slots filled per pass. `time-grid`: Dream's times from 1 to 0.001. `even`: K/S (paper App. A.1)."""
    stop_truncation: Literal["none", "special"] = "none"
    """Drop all slots from the first that predicts a stop token, except slot 1. `special`: the tokenizer's special
    tokens, as in the authors' zero-shot code."""

    @model_validator(mode="after")
    def _check_slots(self) -> Self:
        if self.readout != "states" and self.steps > 1:
            raise ValueError(
                f"readout: {self.readout} pools from the text's states, which differ between passes: set steps to 1"
            )
        if self.adapter_on == "slots" and not self.nested_slots:
            raise ValueError("adapter_on: slots needs slots that the text does not attend to: set nested_slots")
        if not self.nested_slots:
            return self
        if self.steps > 1:
            raise ValueError(
                "nested_slots: with more than one pass, slots attend to tokens filled into others: set steps to 1"
            )
        if self.prompt.variant == "paper":
            raise ValueError(
                "nested_slots: the prompt must not change with the number of slots: set prompt.variant to few"
            )
        if self.tail_length and self.slot_positions == "natural":
            raise ValueError("nested_slots: the tail would move with the number of slots: set tail_length to 0")
        return self

    @property
    def title(self) -> str:
        """Method, backbone, adapter and budget."""
        return f"{super().title} {self.budget}"

    def max_vectors(self, side: Side) -> int:
        """Return K_q or K_p."""
        return self.budget.query if side == "query" else self.budget.passage


class GeneratedRetriever(PromptedRetriever):
    """PromptReps: the state that predicts the next token, for each greedily decoded token (paper §3.2, end)."""

    method: Literal["generated"] = "generated"
    max_tokens: PositiveInt = 1
    """Maximum vectors per text, N. 1: a single vector. The paper uses 20 zero-shot and 4 fine-tuned."""
    stop: Literal["quote", "cap-then-cut", "cap"] = "quote"
    """End of decoding. `quote`: at the closing quote (paper). `cap-then-cut`: after N tokens, then cut at the first
    special token or bare quote (authors' zero-shot code). `cap`: always N tokens (authors' fine-tuned code)."""

    def max_vectors(self, side: Side) -> int:
        """Return N, on both sides."""
        return self.max_tokens


class PrefixedRetriever(RetrieverBase):
    """Base of dense retrievers that encode a prefix and the text, without a prompt."""

    modes = ("dense",)
    is_readable = True
    is_trainable = True

    backbone: BackboneConfig
    """The language model; its fields are below."""
    query_prefix: str = ""
    """Text before each query; it counts towards the limit."""
    passage_prefix: str = ""
    """Text before each passage; it counts towards the limit."""
    append_eos: bool = False
    """Append the backbone's end-of-sequence token to each text; it counts towards the limit."""
    text: TextConfig = TextConfig()


class PooledRetriever(PrefixedRetriever):
    """One vector per text: the mean final hidden state (DiffEmbed, all-MiniLM) or the last one (RepLLaMA)."""

    method: Literal["pooled"] = "pooled"
    pooling: Literal["mean", "last"] = "mean"
    """State of a text: the mean over its tokens, or the last token's."""


class TokensRetriever(PrefixedRetriever):
    """Late interaction: one vector per token, including special tokens; a baseline for slots."""

    method: Literal["tokens"] = "tokens"
    clusters: PositiveInt | None = None
    """Maximum vectors stored per passage: its token vectors are clustered by Ward's method. Queries, and all texts in
    training, keep one vector per token. In half precision, rounding can change clusters between batches."""
    mean_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share s of the text's mean vector in each token's vector, s mean + (1 - s) token, each normalised. Scores then
    include the whole text. The mean is the vector of a `pooled` retriever."""
    text: TextConfig = TextConfig(length_semantics="total")

    @model_validator(mode="after")
    def _check_length_semantics(self) -> Self:
        if self.text.length_semantics != "total":
            raise ValueError("limits must count special tokens too: set text.length_semantics to total")
        return self

    @property
    def title(self) -> str:
        """Method, or `clustered` with the maximum vectors per passage; backbone, adapter and the mean's share."""
        name = super().title
        named = name if self.clusters is None else name.replace(self.method, f"clustered-{self.clusters}", 1)
        return f"{named} mean {self.mean_share:g}" if self.mean_share else named

    def max_vectors(self, side: Side) -> int:
        """Return the maximum tokens of a text, or its maximum clusters if lower."""
        if side == "query":
            return self.text.max_query_tokens
        return min(self.text.max_passage_tokens, self.clusters or self.text.max_passage_tokens)


class LibraryRetriever(RetrieverBase):
    """A published embedding model, run by sentence-transformers (the extra `models`)."""

    modes = ("dense",)
    extra_package = "sentence_transformers"

    method: Literal["library"] = "library"
    backbone: BackboneConfig
    """The model's folder, object-store URI or hub id. An `adapter` is rejected: merge it into the weights first."""
    vectors: Literal["single", "token"] = "single"
    """`single`: one vector per text. `token`: one per token, scored by MaxSim (ColBERT and similar models)."""
    query_prompt: str | None = None
    """Text before each query; it counts towards the limit. None: the prompt in the model's files, if any."""
    passage_prompt: str | None = None
    """Text before each passage; otherwise as `query_prompt`."""
    pool_prompt: bool = True
    """Whether pooling includes the prompt's tokens. True: as in the model's files, which mostly include them."""
    append_eos: bool = False
    """Append the end-of-sequence token to each text, if the tokenizer does not; it counts towards the limit."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """Pooling of a model without `modules.json`. `auto`: the library's choice, `last` for causal decoders and otherwise
    `mean`. A model with `modules.json` sets its pooling there and allows only `auto`."""
    bidirectional: bool = False
    """Run a decoder by transformers' class without the causal mask. For models whose remote code only removes the mask:
    the code is then never run."""
    similarity: Literal["cosine", "dot", "auto"] = "cosine"
    """Similarity of vectors. `dot`: vectors are stored without normalisation, for models trained so. `auto`: as in the
    model's files; an index stores the resolved value."""
    remote_code: bool = False
    """Whether the model needs Python code from its repository. Otherwise such models are rejected. The code runs only
    if you permit the model by `--trust-code` or DIFFRETRIEVER_TRUST_CODE; a config cannot."""
    text: TextConfig = TextConfig()
    """Join and limits of texts; the model's own limits apply too."""
    query_length: PositiveInt | None = None
    """Tokens of a query, in place of the model's own setting; for `vectors: token`. Longer queries are cut, and models
    with query expansion pad shorter ones."""
    prompt_form: str | None = None
    """Template of prompts with an instruction of `on_collections`, which replaces `{instruction}`."""
    on_collections: dict[str, OnCollection] = Field(default_factory=dict)
    """Lower-case name of a collection → settings that differ for it. Jobs apply them to the retriever, and an index
    stores only the result."""

    @model_validator(mode="after")
    def _check_vectors_and_instructions(self) -> Self:
        if self.vectors == "token":
            sentence_only = {"pool_prompt": True, "pooling": "auto", "similarity": "cosine", "append_eos": False}
            wrong = [name for name, default in sentence_only.items() if getattr(self, name) != default]
            if wrong:
                raise ValueError(f"vectors: token has one unit vector a token: leave {' and '.join(wrong)} out")
        if self.bidirectional and self.remote_code:
            raise ValueError("bidirectional runs transformers' own class: leave out remote_code or bidirectional")
        if self.query_length is not None and self.vectors != "token":
            raise ValueError("query_length needs vectors: token: otherwise set text.max_query_tokens")
        form = self.prompt_form
        if form is not None and _INSTRUCTION not in form:
            raise ValueError(f"prompt_form: {_INSTRUCTION} is missing: add it where the instruction goes")
        for name, settings in self.on_collections.items():
            if name != name.lower():
                raise ValueError(f"on_collections: write '{name}' in lower case")
            if form is None and (settings.query_instruction, settings.passage_instruction) != (None, None):
                raise ValueError(f"on_collections: {name} has an instruction: set prompt_form")
        return self

    def on(self, collection: str) -> Self:
        """Return the retriever with the settings for a collection, without those for others."""
        settings = self.on_collections.get(collection.lower(), OnCollection())
        limits = settings.model_dump(include={"max_query_tokens", "max_passage_tokens"}, exclude_none=True)
        changes: dict[str, Any] = {"text": self.text.model_copy(update=limits)}
        for side, instruction in (("query", settings.query_instruction), ("passage", settings.passage_instruction)):
            if instruction is not None:
                assert self.prompt_form is not None, "an instruction has a form"
                changes[f"{side}_prompt"] = self.prompt_form.replace(_INSTRUCTION, instruction)
        if settings.max_query_tokens is not None and self.vectors == "token":
            changes["query_length"] = settings.max_query_tokens
        return self.model_copy(update={**changes, "prompt_form": None, "on_collections": {}})

    @property
    def has_unit_vectors(self) -> bool:
        """Whether vectors are compared by cosine."""
        return self.similarity == "cosine"

    def max_vectors(self, side: Side) -> int:
        """Return 1, or the maximum tokens of a text for `vectors: token`."""
        if self.vectors == "single":
            return 1
        return self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens


class InstalledRetriever(RetrieverBase):
    """Base of configs in other packages; their `method` is a literal PACKAGE:NAME, see `schemas.installed`.

    The fingerprint of an index covers all fields and the encoder's digest of its weights.
    """

    modes = ("dense",)

    method: str
    backbone: BackboneConfig = BackboneConfig(source="")
    """Location of the weights; an empty `source` if the package contains them."""
    text: TextConfig = TextConfig()


class Bm25Retriever(RetrieverBase):
    """BM25 with Lucene's formula; English words by Porter's stemmer and Lucene's stop words, others by Snowball's."""

    modes = ("sparse",)
    has_weights = False

    method: Literal["bm25"] = "bm25"
    k1: NonNegativeFloat = 0.9
    """Saturation of term frequencies."""
    b: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Normalisation by the length of a passage."""
    title_join: TitleJoin = "space"
    """Separator of title and text; `none` omits the title."""

    @property
    def offered_modes(self) -> tuple[Mode, ...]:
        """BM25 scores, under the names `sparse` and `bm25`."""
        return (*self.modes, "bm25")

    @property
    def title(self) -> str:
        """Method and parameters."""
        return f"bm25 k1={self.k1:g} b={self.b:g}"

    def max_vectors(self, side: Side) -> int:
        """Return 0."""
        return 0


BackboneRetriever: TypeAlias = MaskedRetriever | GeneratedRetriever | PooledRetriever | TokensRetriever
"""Trainable retrievers."""
TRAINABLE_METHODS: tuple[str, ...] = tuple(
    config.model_fields["method"].default for config in get_args(BackboneRetriever)
)
"""Methods of the trainable retrievers."""
NeuralRetriever: TypeAlias = BackboneRetriever | LibraryRetriever | InstalledRetriever
"""Retrievers with weights."""
_BuiltIn: TypeAlias = Annotated[BackboneRetriever | LibraryRetriever | Bm25Retriever, Field(discriminator="method")]


def _by_method(values: Any, built_in: ValidatorFunctionWrapHandler) -> Any:
    method = values.get("method") if isinstance(values, dict) else None
    if names_installed(method):
        return installed_encoder(method).config_class.model_validate(values)
    return values if isinstance(values, RetrieverBase) else built_in(values)


if TYPE_CHECKING:
    RetrieverConfig: TypeAlias = NeuralRetriever | Bm25Retriever
else:
    RetrieverConfig = Annotated[SerializeAsAny[_BuiltIn], WrapValidator(_by_method)]
RETRIEVER_ADAPTER: TypeAdapter[RetrieverConfig] = TypeAdapter(RetrieverConfig)


def is_neural(config: RetrieverConfig) -> TypeIs[NeuralRetriever]:
    """Return whether the retriever has weights, and so a `backbone`."""
    return config.has_weights


def is_trainable(config: RetrieverConfig) -> TypeIs[BackboneRetriever]:
    """Return whether the retriever can be fine-tuned."""
    return config.is_trainable


def has_slots(config: RetrieverConfig) -> TypeIs[MaskedRetriever]:
    """Return whether the retriever has mask slots, and so a `budget`."""
    return config.has_slots
