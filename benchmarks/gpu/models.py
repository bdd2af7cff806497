"""Encoders over random backbones made on the device, and texts of wanted lengths for them: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from diffretriever.backbones.base import Backbone
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.generated import GeneratedEncoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.pooled import PooledEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneRetriever
from diffretriever.studies.reproduction import sizes as published
from diffretriever.testing import FAMILIES
from diffretriever.testing.checkpoints import SENTENCES_AND_WORDS, build_tokenizer
from diffretriever.testing.on_device import random_backbone
from diffretriever.testing.published import Sizes

Size: TypeAlias = Literal["published", "tiny"]
Family: TypeAlias = Literal["dream", "llada", "qwen2", "llama3"]

_ENCODERS: dict[str, type[BackboneEncoder]] = {
    "masked": MaskedEncoder,
    "pooled": PooledEncoder,
    "generated": GeneratedEncoder,
}
_CONTENT_SHARE = 0.4
"""Different content words of an English text, by its tokens."""
_SPREAD = 0.5
"""Standard deviation of the logarithm of lengths."""


def sizes_of(family: str, size: Size) -> Sizes:
    """Return the sizes of the paper's model of a family, or those of one that a CPU computes in milliseconds."""
    if size == "published":
        sources = {family: source for source, family in published.FAMILIES.items()}
        return published.sizes_of(sources[family])
    of_family = FAMILIES[family]
    vocab = build_tokenizer(of_family).get_vocab_size()
    return Sizes(64, 2, 4, 2 if of_family.grouped_heads else 4, 128, vocab, of_family.positions)


def made(family: str, size: Size, folder: Path, device: str) -> Backbone:
    """Return a random backbone in bfloat16, made on the device."""
    return random_backbone(family, sizes_of(family, size), folder, device=device)


def retriever_of(method: str, source: Path, **options: Any) -> BackboneRetriever:
    """Return a retriever over the backbone in a folder, of whose small tokenizer subwords count as words."""
    values: dict[str, Any] = {"method": method, "backbone": {"source": str(source), "dtype": "bfloat16"}, **options}
    if method != "pooled":
        values["content_words"] = {"subwords": True}
    retriever = RETRIEVER_ADAPTER.validate_python(values)
    assert isinstance(retriever, BackboneRetriever), "the methods measured here are over a backbone"
    return retriever


def encoder_over(backbone: Backbone, retriever: BackboneRetriever) -> BackboneEncoder:
    """Return the encoder of a retriever over a backbone that is there already."""
    kind = _ENCODERS[retriever.method]
    return kind(retriever, backbone, kind.preparer_class(backbone.vocabulary, retriever))


def texts_of(encoder: BackboneEncoder, mean: int, tokens: int, seed: int = 0) -> list[PreparedText]:
    """Return passages whose own tokens are `mean` on average and log-normal, as many as fill `tokens` with all around.

    Their tokens and content words are drawn at random.
    """
    rng = np.random.default_rng(seed)
    (short,) = encoder.preparer.prepare_passages([""], ["a"])
    around = len(short.input_ids) - short.n_tokens
    limit = encoder.backbone.max_length - around
    texts: list[PreparedText] = []
    filled = 0
    while filled < tokens or not texts:
        own = int(np.clip(rng.lognormal(np.log(mean) - _SPREAD**2 / 2, _SPREAD), 4, limit))
        texts.append(_drawn(short, own, encoder.backbone.vocab_size, rng))
        filled += len(texts[-1].input_ids)
    return texts


def _drawn(short: PreparedText, own: int, vocab_size: int, rng: np.random.Generator) -> PreparedText:
    # Somewhere in the middle is the text, with the prompt around it; slots and tail are the last tokens.
    middle = max(1, (len(short.input_ids) - short.slots) // 2)
    words = np.sort(rng.choice(vocab_size, max(1, int(_CONTENT_SHARE * own)), replace=False)).astype(np.int32)
    drawn = rng.integers(0, vocab_size, own - short.n_tokens).astype(np.int32)
    ids = np.concatenate([short.input_ids[:middle], drawn, short.input_ids[middle:]])
    is_prompted = len(short.content_ids) > 0
    return PreparedText(
        ids, short.slots, words if is_prompted else short.content_ids, words if is_prompted else short.variant_ids, own
    )


def written_texts(count: int, words: int, seed: int = 0) -> Sequence[str]:
    """Return texts of about so many words, of which the small tokenizers know all."""
    rng = np.random.default_rng(seed)
    known = sorted({word for text in SENTENCES_AND_WORDS for word in text.split()})
    lengths = np.clip(rng.lognormal(np.log(words) - _SPREAD**2 / 2, _SPREAD, count), 4, 4 * words).astype(int)
    return [" ".join(rng.choice(known, length)) for length in lengths]
