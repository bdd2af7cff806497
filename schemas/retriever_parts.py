"""The parts that retriever configs are made of: backbone, prompt, lengths, content words."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import PositiveInt

from schemas.base import Model

Mode: TypeAlias = Literal["dense", "sparse", "hybrid"]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
Side: TypeAlias = Literal["query", "passage"]
TitleJoin: TypeAlias = Literal["space", "period-space", "none"]


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
    adapter: str | None = None
    """LoRA adapter in PEFT format on top of the weights: local folder, hub id, or `minilm` for the embedded one."""
    adapter_revision: str | None = None
    """Branch, tag or commit of the adapter on the hub."""
    adapter_head: Literal["include", "drop"] = "include"
    """What becomes of an adapter's part on the output head, which the authors' LLaDA adapters have by accident
    (reference §5.5); it touches sparse scores only."""
    merge_adapter: bool = True
    """Add the adapter into the weights at load: faster, the same results up to rounding."""


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

    title_join: TitleJoin = "space"
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
