"""What describes a retriever completely: method, backbone, budget, prompt, lengths. Saved with every artefact."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveInt, TypeAdapter

from schemas.base import Model
from schemas.budget import Budget

Mode: TypeAlias = Literal["dense", "sparse", "hybrid"]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
Side: TypeAlias = Literal["query", "passage"]


class BackboneConfig(Model):
    """Where the weights are and how they are held."""

    source: str
    """Local folder, hub id, or `minilm` for the embedded default."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None is its default branch."""
    dtype: Dtype = "auto"
    """Precision of the weights; `auto`: bfloat16 on a GPU, on a CPU whichever a short probe finds faster."""
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = "auto"
    """Attention kernel; `auto`: flash attention where it is installed and a GPU is used, else SDPA."""


class PromptConfig(Model):
    """The retrieval prompt around a text (paper Table 1; reference §1.1)."""

    variant: Literal["paper", "one", "few", "three", "bare"] = "paper"
    """`paper`: one word for K=1, a few words for K>1. `three`: the original PromptReps phrasing.
    `bare`: no words at all, only the text and its slots."""
    colon: bool = False
    """The authors' code writes a colon after `is`/`are` in the assistant's prefix; the paper prints none."""
    rewrite_numbers: bool = False
    """The authors' code turns a number of words in the prompt into K when K>1."""


class TextConfig(Model):
    """How a passage's fields become one text, and how long texts may be, in subword tokens."""

    title_join: Literal["space", "period-space", "none"] = "space"
    """What stands between title and text; `none` leaves the title out."""
    max_query_tokens: PositiveInt = 512
    max_passage_tokens: PositiveInt = 512
    length_semantics: Literal["text", "total"] = "text"
    """What the two limits count: the text's own tokens, or text and prompt together (never slots or tail)."""


class ContentWordsConfig(Model):
    """The content-word filter of the sparse representation (paper §3.3; reference §3.1)."""

    subwords: bool = False
    """Keep every subword piece of a content word, as the authors' code does; the paper removes fragments."""
    fold_space_variants: bool = False
    """Let a word's form with a leading space (` dog`) count for the word itself (`dog`), the larger weight winning."""


class MaskedRetriever(Model):
    """DiffRetriever: K mask slots after a retrieval prompt, read in one bidirectional pass (paper §3.2)."""

    method: Literal["masked"] = "masked"
    backbone: BackboneConfig
    budget: Budget = Budget(1, 1)
    prompt: PromptConfig = PromptConfig()
    text: TextConfig = TextConfig()
    content_words: ContentWordsConfig = ContentWordsConfig()
    read_offset: Literal[0, -1] = 0
    """Position read for a slot, relative to it. 0: the paper. -1: Dream's own decoding (reference §2.2)."""
    tail_length: Literal[0, 1, 3] = 3
    """Tokens after the slots: 3 is closing quote, turn end, end of sequence (paper Eq. 1); 1 is the last alone."""
    slot_positions: Literal["natural", "spread"] = "natural"
    """`spread` places slots at far position ids, apart from each other: for absolute-position encoders
    that were never trained to fill slots."""
    sparse_topk: PositiveInt | None = None
    """Keep at most this many impacts a text; the authors keep 128 or 256."""
    sparse_rounding: Literal["none", "trunc100", "round100"] = "none"
    """The authors' code multiplies impacts by 100 and truncates or rounds; the paper stores them as they are."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The scores this retriever offers."""
        return ("dense", "sparse", "hybrid")


class PooledRetriever(Model):
    """One vector a text: the mean of its tokens' final hidden states (DiffEmbed; all-MiniLM's own use)."""

    method: Literal["pooled"] = "pooled"
    backbone: BackboneConfig
    text: TextConfig = TextConfig()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The scores this retriever offers."""
        return ("dense",)


class Bm25Retriever(Model):
    """BM25 with Lucene's formula, Porter stemming and Lucene's English stop words."""

    method: Literal["bm25"] = "bm25"
    k1: Annotated[float, Field(ge=0)] = 0.9
    b: Annotated[float, Field(ge=0, le=1)] = 0.4
    title_join: Literal["space", "period-space", "none"] = "space"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The scores this retriever offers."""
        return ("sparse",)


NeuralRetriever: TypeAlias = MaskedRetriever | PooledRetriever
RetrieverConfig: TypeAlias = Annotated[MaskedRetriever | PooledRetriever | Bm25Retriever, Field(discriminator="method")]
RETRIEVER_ADAPTER: TypeAdapter[RetrieverConfig] = TypeAdapter(RetrieverConfig)
