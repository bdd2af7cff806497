"""Encoders turn text into representations.

To add one, write a file here, a config in `schemas.retriever` and a line below. For encoders in a package of their own,
see `schemas.installed`.
"""

from __future__ import annotations

from pkgutil import resolve_name
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
    """Return the preparer of `config`, without loading weights."""
    return _encoder_class(config).load_preparer(config)


def load_encoder(config: NeuralRetriever, device: str = "auto", *, trainable: bool = False) -> Encoder:
    """Load the model of `config` onto `device` (`auto`, `cpu`, `cuda` or `cuda:N`) and return its encoder.

    With `trainable`, gradients flow to the weights; otherwise they are frozen, which is faster on a CPU.

    Raises:
        ValueError: The checkpoint is missing, has an unknown format, or does not support the method.

    Example:
        >>> encoder = dr.load_encoder(dr.load_retriever("minilm-pooled"))
        >>> encoder.encode_queries(["when do I cut roses?"]).vectors_MH.shape
        (1, 384)
    """
    encoder = _encoder_class(config).load(config, device)
    if not trainable:
        encoder.freeze()
    return encoder


def _encoder_class(config: NeuralRetriever) -> type[Encoder]:
    if isinstance(config, str):
        raise ValueError(f"'{config}' is a name, not a config: pass load_retriever('{config}')")
    if names_installed(config.method):
        return installed_encoder(config.method)
    encoder_class: type[Encoder] = resolve_name(ENCODERS[config.method])
    return encoder_class
