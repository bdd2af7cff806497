"""Retriever configs: method, backbone, budget, prompt and lengths. Every index stores the config that encoded it.

Each config declares the capabilities of its method, and other code checks these, not the method. To add a method, add
a class here and to the unions at the end, and its encoder; or publish an `InstalledRetriever` in a package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import (
    Field,
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
    """Precision of the weights; `auto`: bfloat16 on a GPU and on a CPU with instructions for it (x86 AVX-512 or AMX),
    else float32. `float8`: the matrices of the layers, and what they are multiplied with, in 8 bits (e4m3), the rest in
    bfloat16, for GPUs from compute capability 8.9 on (L40S, H100), where such products take half the time; on a CPU it
    is slow, and there to measure what the rounding costs. Not for training."""
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
    """The authors' code writes a colon after `is`/`are` in the assistant's prefix; the paper prints none."""


class TextConfig(Model):
    """Join of title and text, and maximum lengths in subword tokens."""

    title_join: TitleJoin = "space"
    """Separator of title and text; `none` omits the title."""
    max_query_tokens: PositiveInt = 512
    max_passage_tokens: PositiveInt = 512
    length_semantics: Literal["text", "total"] = "text"
    """Tokens that both limits count: of the text, or of text and prompt. Slots and tail are excluded."""


CONTENT_WORDS: dict[str, dict[str, bool]] = {
    "words": {"subwords": False, "fold_space_variants": False},
    "pieces": {"subwords": True, "fold_space_variants": False},
    "folded": {"subwords": False, "fold_space_variants": True},
}
"""Named filters: whole words without fragments, as the paper says; every piece of a word, as the authors' code keeps
them; whole words in both their forms, which is ours."""


class ContentWordsConfig(Model):
    """The content-word filter of the sparse representation (paper §3.3); a name of `CONTENT_WORDS` too.

    Most words of a large vocabulary are one entry only with a leading space: `words` keeps some four in ten of them.
    """

    subwords: bool = False
    """Keep every subword piece of a content word, as the authors' code does; the paper removes fragments."""
    fold_space_variants: bool = False
    """Let a word's form with a leading space (` dog`) count for the word itself (`dog`), the larger weight winning."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        if not isinstance(values, str):
            return values
        if values not in CONTENT_WORDS:
            raise ValueError(f"no filter '{values}'.{suggest(values, CONTENT_WORDS)}")
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
    """The scores that it makes; the last one is the default where `default_mode` names none."""
    has_weights: ClassVar[bool] = True
    """A model reads the texts, and the config has a `backbone`. False: texts are stored as they are."""
    has_slots: ClassVar[bool] = False
    """Texts are read at mask slots, and the config has a `budget`, their numbers."""
    has_query_budget: ClassVar[bool] = False
    """The number of a query's vectors can be chosen for each query."""
    is_readable: ClassVar[bool] = False
    """Its vectors are directions of a backbone's final states, which the output head reads as words."""
    is_trainable: ClassVar[bool] = False
    """Its backbone is one of ours: it can be fine-tuned, and a training can learn from it."""
    extra_package: ClassVar[str | None] = None
    """Python package that runs it, where the plain installation does not bring that."""

    default_mode: Mode | None = None
    """Default scoring mode, such as dense+0.3bm25; None: the last of the retriever's own scores."""

    @model_validator(mode="after")
    def _offers_its_default(self) -> Self:
        if self.default_mode is not None and unweighted(self.default_mode) not in self.offered_modes:
            raise ValueError(
                f"default_mode: this retriever has no {self.default_mode} scores."
                f"{suggest(self.default_mode, self.offered_modes)}"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that stored vectors depend on, as JSON values; the digest of the weights completes them."""
        values = self.model_dump(mode="json", exclude={*ASKED_BY})
        if self.has_weights:
            values["backbone"] = {
                name: value for name, value in values["backbone"].items() if name not in _WEIGHTS_FROM
            }
        return values

    @property
    def title(self) -> str:
        """A name for people: the method, the model and what else matters most."""
        backbone: BackboneConfig = getattr(self, "backbone", BackboneConfig(source=""))
        parts = [getattr(self, "method", ""), backbone.source, *(["+", backbone.adapter] if backbone.adapter else [])]
        return " ".join(filter(None, parts))

    def max_vectors(self, side: Side) -> int:
        """Return the most vectors that a text has; 0 where there are none."""
        return 1

    def passes(self, tokens: float) -> float:
        """Return the work of encoding a text of so many tokens, prompt included, in passes of the model over it."""
        return 1.0

    def on(self, collection: str) -> Self:
        """Return the retriever for the collection of this name: itself, where it is the same for all collections."""
        return self

    @property
    def ranked_by(self) -> Mode:
        """The default mode."""
        return self.default_mode or self.modes[-1]

    @property
    def reported_modes(self) -> tuple[Mode, ...]:
        """The scores that runs are made of where nobody says otherwise: its own, and the default mode."""
        return tuple(dict.fromkeys((*self.modes, self.ranked_by)))

    @property
    def offered_modes(self) -> tuple[Mode, ...]:
        """All that its indexes can be ranked by, without weights: its scores, BM25 of the texts, and their sums."""
        return modes_of({"bm25", *[name for mode in self.modes for name in lists_of(mode)]})

    @property
    def has_unit_vectors(self) -> bool:
        """Whether vectors are stored with length 1."""
        return True

    @property
    def has_token_vectors(self) -> bool:
        """Whether a text has a vector for each token, up to `max_vectors`, which most texts are too short for."""
        return False

    @property
    def runs_its_code(self) -> bool:
        """Whether Python code of the model's repository runs, which consent is needed for."""
        return bool(getattr(self, "remote_code", False))


class PromptedRetriever(RetrieverBase):
    """Base of retrievers with a retrieval prompt and sparse scores."""

    modes = ("dense", "sparse", "hybrid")
    has_query_budget = True
    is_readable = True
    is_trainable = True

    backbone: BackboneConfig
    prompt: PromptConfig = PromptConfig()
    text: TextConfig = TextConfig()
    content_words: ContentWordsConfig = ContentWordsConfig()
    sparse_topk: PositiveInt | None = None
    """Maximum number of impacts per text; the authors keep 128 or 256."""
    sparse_rounding: Literal["none", "trunc100", "round100"] = "none"
    """The authors' code multiplies impacts by 100 and truncates or rounds; the paper stores them as they are."""


class MaskedRetriever(PromptedRetriever):
    """DiffRetriever: K mask slots after a retrieval prompt, read in one bidirectional pass (paper §3.2)."""

    has_slots = True

    method: Literal["masked"] = "masked"
    budget: Budget = Budget(1, 1)
    read_offset: Literal[0, -1] = 0
    """Position read for a slot, relative to it. 0: the paper. -1: Dream's own decoding."""
    default_selector: str = "rule"
    """What chooses K_q where a query's budget is `adaptive`: `rule`, the paper's, by the query's length, or `fixed:4`,
    where none was measured to be better."""
    readout: Readout = "states"
    """A slot's vector, before it gets length 1. `states`: the slot's state h, as in the paper. `pooling`: the mean of
    the states of all tokens that are not slots, and R p, where p is the mean of the states of the slot's own part of
    the text, the i-th of as many equal parts as the text has slots, weighted by softmax(h A x) for each state x. A
    training learns R and A, from the identity on. Without an adapter p is a part's plain mean, and R is left out."""
    adapter_on: Literal["all", "slots"] = "all"
    """Which tokens the adapter changes. `slots`: these alone, so that the text's states are the backbone's own, and
    their mean is what mean pooling gives without the adapter; for nested slots. It is not merged then."""
    tail_length: Literal[0, 1, 3] = 3
    """Tokens after the slots: 3 is closing quote, turn end, end of sequence (paper Eq. 1); 1 is the last alone."""
    slot_positions: Literal["natural", "spread"] = "natural"
    """`spread` places slots at far position ids, apart from each other: for absolute-position encoders
    that were never trained to fill slots."""
    nested_slots: bool = False
    """Slot i sees the text and the slots up to itself, and nothing else sees slots: the first k vectors of a text are
    those of budget k, so that one encoding serves all smaller budgets; with `readout: pooling` vectors depend on k, and
    one pass serves them all the same. For backbones trained so."""
    steps: PositiveInt = 1
    """S, forward passes: with more than one, each pass fills the slots of lowest entropy (paper App. A). An
    adapter is for the passes that it was trained with."""
    schedule: Literal["time-grid", "even"] = "time-grid"
    """How many slots a pass fills. `time-grid`: Dream's times from 1 to 0.001; `even`: K/S (paper App. A.1)."""
    stop_truncation: Literal["none", "special"] = "none"
    """Leave out slots from the first one on that predicts a stop token, unless it is the first slot. `special`: the
    tokenizer's special tokens, as in the authors' zero-shot code."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.readout != "states" and self.steps > 1:
            raise ValueError(
                f"readout: {self.readout} reads the text's states, which differ from pass to pass: set steps to 1"
            )
        if self.adapter_on == "slots" and not self.nested_slots:
            raise ValueError("adapter_on: slots is for nested slots, which no token of the text sees: set nested_slots")
        if not self.nested_slots:
            return self
        if self.steps > 1:
            raise ValueError(
                "nested_slots: with more than one pass slots see what others were filled with: set steps to 1"
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

    def passes(self, tokens: float) -> float:
        """Return S."""
        return self.steps

    def max_vectors(self, side: Side) -> int:
        """Return K_q or K_p."""
        return self.budget.query if side == "query" else self.budget.passage


class GeneratedRetriever(PromptedRetriever):
    """PromptReps: the state that predicts the next token, one for each token decoded greedily (paper §3.2, end)."""

    method: Literal["generated"] = "generated"
    max_tokens: PositiveInt = 1
    """N, the cap on vectors of a text. 1 is the single representation; the paper has 20 zero-shot, 4 fine-tuned."""
    stop: Literal["quote", "cap-then-cut", "cap"] = "quote"
    """`quote`: a text stops at the closing quote (paper). `cap-then-cut`: all N are decoded, then cut at the first
    token that is special or the bare quote (the authors' zero-shot code). `cap`: always N (their fine-tuned code)."""

    def passes(self, tokens: float) -> float:
        """Return one pass over the text, and a token more of it for each that is decoded."""
        return 1 + (self.max_tokens - 1) / tokens

    def max_vectors(self, side: Side) -> int:
        """Return N, on both sides."""
        return self.max_tokens


class PrefixedRetriever(RetrieverBase):
    """What the retrievers share that read a text as the tokenizer writes it, after a prefix, and have dense scores."""

    modes = ("dense",)
    is_readable = True
    is_trainable = True

    backbone: BackboneConfig
    query_prefix: str = ""
    """Written before every query, inside the limit."""
    passage_prefix: str = ""
    append_eos: bool = False
    """End every text with the backbone's end-of-sequence token, inside the limit."""
    text: TextConfig = TextConfig()


class PooledRetriever(PrefixedRetriever):
    """One vector a text: the mean of its final hidden states (DiffEmbed, all-MiniLM) or the last of them (RepLLaMA)."""

    method: Literal["pooled"] = "pooled"
    pooling: Literal["mean", "last"] = "mean"


class TokensRetriever(PrefixedRetriever):
    """Late interaction: a vector for each token, special tokens included; what slots are to be compared with."""

    method: Literal["tokens"] = "tokens"
    clusters: PositiveInt | None = None
    """Passages are stored as at most so many vectors: their tokens' are clustered by Ward's method. Queries, and all
    texts in training, keep a vector for each token. Where two merges are nearly as good, rounding decides: in half
    precision a passage may have other clusters in another batch."""
    mean_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share s of the text's mean in each vector, s mean + (1 - s) own, all three of length 1: the whole text is then
    scored along with the best of its tokens. The mean is the vector of a `pooled` retriever."""
    text: TextConfig = TextConfig(length_semantics="total")

    @model_validator(mode="after")
    def _limits_count_vectors(self) -> Self:
        if self.text.length_semantics != "total":
            raise ValueError("every token has a vector, special ones too: set text.length_semantics to total")
        return self

    @property
    def title(self) -> str:
        """Method, or `clustered` and the most vectors of a passage; backbone, adapter and the mean's share."""
        name = super().title
        named = name if self.clusters is None else name.replace(self.method, f"clustered-{self.clusters}", 1)
        return f"{named} mean {self.mean_share:g}" if self.mean_share else named

    @property
    def has_token_vectors(self) -> bool:
        """Return True."""
        return True

    def max_vectors(self, side: Side) -> int:
        """Return the limit of the text's tokens, or of clusters."""
        if side == "query":
            return self.text.max_query_tokens
        return min(self.text.max_passage_tokens, self.clusters or self.text.max_passage_tokens)


class LibraryRetriever(RetrieverBase):
    """A published embedding model, run as its card says by sentence-transformers (the extra `models`)."""

    modes = ("dense",)
    extra_package = "sentence_transformers"

    method: Literal["library"] = "library"
    backbone: BackboneConfig
    """The model's folder, object-store URI or hub id. `adapter` is refused: merge it into the weights first."""
    vectors: Literal["single", "token"] = "single"
    """One vector a text, or one a token scored by MaxSim (ColBERT and its kin)."""
    query_prompt: str | None = None
    """Written before every query, inside the limit. None: the prompt in the model's own files, if there is one."""
    passage_prompt: str | None = None
    pool_prompt: bool = True
    """False: the prompt's tokens do not count in the pooling. True: as the model's files say, which is mostly yes."""
    append_eos: bool = False
    """End every text with the end-of-sequence token, inside the limit, where the tokenizer does not do so itself."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """For models without a `modules.json`; `auto` there is the library's choice: `last` for causal decoders,
    else `mean`. With a `modules.json` only `auto` is allowed: pooling is what that says."""
    bidirectional: bool = False
    """Run a decoder without its causal mask and by transformers' own class. For models whose repository has code that
    does no more than that: the code is then not needed, and never run."""
    similarity: Literal["cosine", "dot", "auto"] = "cosine"
    """`dot` stores vectors as they are, for models trained without normalisation. `auto`: as the model's files say; an
    index says which of the two it was."""
    remote_code: bool = False
    """The model needs the Python code that its repository brings. Off: such models are refused. On, the code runs only
    in commands that name the model by `--trust-code` or DIFFRETRIEVER_TRUST_CODE: a config is no consent."""
    text: TextConfig = TextConfig()
    """Its limits apply besides the model's own."""
    query_length: PositiveInt | None = None
    """Of models with a vector for each token: queries are cut to so many tokens, whatever the model's files say, and
    filled up to them by models that do so."""
    prompt_form: str | None = None
    """Prompt of a collection with an instruction of its own, which stands in the place of `{instruction}`."""
    on_collections: dict[str, OnCollection] = Field(default_factory=dict)
    """Collection, by its name in lower case → what is otherwise there. A job that names a collection takes it into the
    retriever, and an index has only what it was made with."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.vectors == "token":
            sentence_only = {"pool_prompt": True, "pooling": "auto", "similarity": "cosine", "append_eos": False}
            wrong = [name for name, default in sentence_only.items() if getattr(self, name) != default]
            if wrong:
                raise ValueError(f"vectors: token has one unit vector a token: leave {' and '.join(wrong)} out")
        if self.bidirectional and self.remote_code:
            raise ValueError("bidirectional runs transformers' own class: leave remote_code out, or bidirectional")
        if self.query_length is not None and self.vectors != "token":
            raise ValueError("query_length goes with vectors: token: set text.max_query_tokens")
        form = self.prompt_form
        if form is not None and _INSTRUCTION not in form:
            raise ValueError(f"prompt_form: there is no {_INSTRUCTION} in it for an instruction to stand in")
        for name, own in self.on_collections.items():
            if name != name.lower():
                raise ValueError(f"on_collections: write '{name}' in lower case")
            if form is None and (own.query_instruction, own.passage_instruction) != (None, None):
                raise ValueError(f"on_collections: {name} has an instruction, which needs a prompt_form to stand in")
        return self

    def on(self, collection: str) -> Self:
        """Return the retriever for the collection of this name, without what it is on others."""
        own = self.on_collections.get(collection.lower(), OnCollection())
        limits = own.model_dump(include={"max_query_tokens", "max_passage_tokens"}, exclude_none=True)
        changes: dict[str, Any] = {"text": self.text.model_copy(update=limits)}
        for side, instruction in (("query", own.query_instruction), ("passage", own.passage_instruction)):
            if instruction is not None:
                assert self.prompt_form is not None, "an instruction has a form"
                changes[f"{side}_prompt"] = self.prompt_form.replace(_INSTRUCTION, instruction)
        if own.max_query_tokens is not None and self.vectors == "token":
            changes["query_length"] = own.max_query_tokens
        return self.model_copy(update={**changes, "prompt_form": None, "on_collections": {}})

    @property
    def has_unit_vectors(self) -> bool:
        """Whether vectors are compared by cosine."""
        return self.similarity == "cosine"

    @property
    def has_token_vectors(self) -> bool:
        """Whether this is ColBERT or its kin."""
        return self.vectors == "token"

    def max_vectors(self, side: Side) -> int:
        """Return 1, or the limit of the text's tokens."""
        if self.vectors == "single":
            return 1
        return self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens


class InstalledRetriever(RetrieverBase):
    """The base of configs in packages of somebody's own: `method` is a literal PACKAGE:NAME; see `schemas.installed`.

    Its other fields are the settings that vectors depend on: they are part of an index's fingerprint, as is the digest
    of weights that the encoder gives.
    """

    modes = ("dense",)

    method: str
    backbone: BackboneConfig = BackboneConfig(source="")
    """Where the weights are; an empty `source` where the package brings all that it needs."""
    text: TextConfig = TextConfig()


class Bm25Retriever(RetrieverBase):
    """BM25 with Lucene's formula, Porter stemming and Lucene's English stop words."""

    modes = ("sparse",)
    has_weights = False

    method: Literal["bm25"] = "bm25"
    k1: Annotated[float, Field(ge=0)] = 0.9
    b: Annotated[float, Field(ge=0, le=1)] = 0.4
    title_join: TitleJoin = "space"

    @property
    def offered_modes(self) -> tuple[Mode, ...]:
        """Its own scores by either name: they are those of the texts."""
        return (*self.modes, "bm25")

    @property
    def title(self) -> str:
        """Method and parameters."""
        return f"bm25 k1={self.k1:g} b={self.b:g}"

    def max_vectors(self, side: Side) -> int:
        """Return 0."""
        return 0


BackboneRetriever: TypeAlias = MaskedRetriever | GeneratedRetriever | PooledRetriever | TokensRetriever
"""Those that are trainable."""
TRAINABLE_METHODS: tuple[str, ...] = tuple(
    config.model_fields["method"].default for config in get_args(BackboneRetriever)
)
"""Their methods, by name."""
NeuralRetriever: TypeAlias = BackboneRetriever | LibraryRetriever | InstalledRetriever
"""Those that have weights."""
_Own: TypeAlias = Annotated[BackboneRetriever | LibraryRetriever | Bm25Retriever, Field(discriminator="method")]


def _by_method(values: Any, ours: ValidatorFunctionWrapHandler) -> Any:
    """Return the config: of our own methods, or of one that an installed package has."""
    method = values.get("method") if isinstance(values, dict) else None
    if names_installed(method):
        return installed_encoder(method).config_class.model_validate(values)
    return values if isinstance(values, RetrieverBase) else ours(values)


if TYPE_CHECKING:
    RetrieverConfig: TypeAlias = NeuralRetriever | Bm25Retriever
else:
    RetrieverConfig = Annotated[SerializeAsAny[_Own], WrapValidator(_by_method)]
RETRIEVER_ADAPTER: TypeAdapter[RetrieverConfig] = TypeAdapter(RetrieverConfig)


def is_neural(config: RetrieverConfig) -> TypeIs[NeuralRetriever]:
    """Return whether it has weights; for a type checker, whether it has a `backbone`."""
    return config.has_weights


def is_trainable(config: RetrieverConfig) -> TypeIs[BackboneRetriever]:
    """Return whether it can be fine-tuned."""
    return config.is_trainable


def has_slots(config: RetrieverConfig) -> TypeIs[MaskedRetriever]:
    """Return whether its texts are read at mask slots; for a type checker, whether it has a `budget`."""
    return config.has_slots
