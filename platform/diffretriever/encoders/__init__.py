"""Encoders: text to representations. Adding one is a file here, a config in `schemas.retriever` and a line below.

One in a package of its own needs none of that: see `schemas.installed`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from diffretriever.schemas.installed import installed_encoder, names_installed
from diffretriever.schemas.retriever import NeuralRetriever

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.preparer import Preparer

__all__ = ["ENCODERS", "load_encoder", "load_preparer"]

ENCODERS: dict[str, str] = {
    "masked": "diffretriever.encoders.masked:MaskedEncoder",
    "generated": "diffretriever.encoders.generated:GeneratedEncoder",
    "pooled": "diffretriever.encoders.pooled:PooledEncoder",
    "tokens": "diffretriever.encoders.tokens:TokensEncoder",
    "library": "diffretriever.encoders.library:LibraryEncoder",
}
"""`method` of a retriever config → the class that runs it, as "module:class"."""


def load_preparer(config: NeuralRetriever) -> Preparer:
    """Return what prepares texts for `config`, without loading any weights."""
    return _encoder_class(config).load_preparer(config)


def load_encoder(config: NeuralRetriever, device: str = "auto", *, trainable: bool = False) -> Encoder:
    """Load the model of `config` onto `device` and return its encoder.

    Args:
        config: which.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        trainable: whether gradients are to flow through its passes; those without are faster on a CPU.

    Raises:
        ValueError: the checkpoint is not there, not understood, or lacks what the method needs.
    """
    encoder = _encoder_class(config).load(config, device)
    if not trainable:
        encoder.freeze()
    return encoder


def _encoder_class(config: NeuralRetriever) -> type[Encoder]:
    if isinstance(config, str):
        raise ValueError(f"'{config}' is a name: load_retriever gives its config, or say Retriever('{config}').encoder")
    if names_installed(config.method):
        return installed_encoder(config.method)
    module, name = ENCODERS[config.method].split(":")
    found: type[Encoder] = getattr(import_module(module), name)
    return found
