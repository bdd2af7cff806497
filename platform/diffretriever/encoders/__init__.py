"""Encoders: text to representations. Adding one is a file here, a config in `schemas.retriever` and a line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.retriever import MaskedRetriever, NeuralRetriever, PooledRetriever

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary
    from diffretriever.encoders.base import Encoder, Preparer

__all__ = ["load_encoder", "load_preparer", "make_preparer"]


def make_preparer(config: NeuralRetriever, vocabulary: Vocabulary) -> Preparer:
    """Return what prepares texts for `config`, given a backbone's tokenizer side."""
    from diffretriever.encoders.masked import MaskedPreparer
    from diffretriever.encoders.pooled import PooledPreparer

    match config:
        case MaskedRetriever():
            return MaskedPreparer(vocabulary, config)
        case PooledRetriever():
            return PooledPreparer(vocabulary, config.text)


def load_preparer(config: NeuralRetriever) -> Preparer:
    """Return what prepares texts for `config`, without loading any weights."""
    from diffretriever.backbones import load_vocabulary

    return make_preparer(config, load_vocabulary(config.backbone.source, revision=config.backbone.revision))


def load_encoder(config: NeuralRetriever, device: str = "auto") -> Encoder:
    """Load the backbone of `config` onto `device` and return its encoder.

    Raises:
        ValueError: the checkpoint is not there, not understood, or lacks what the method needs.
    """
    from diffretriever.backbones import load_backbone
    from diffretriever.encoders.masked import MaskedEncoder
    from diffretriever.encoders.pooled import PooledEncoder

    place = config.backbone
    backbone = load_backbone(
        place.source, dtype=place.dtype, device=device, revision=place.revision, attention=place.attention
    )
    preparer = make_preparer(config, backbone.vocabulary)
    match config:
        case MaskedRetriever():
            return MaskedEncoder(config, backbone, preparer)
        case PooledRetriever():
            return PooledEncoder(config, backbone, preparer)
