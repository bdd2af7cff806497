"""Protocols: rules that change a retriever's settings to those of the paper or of the authors' code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias

import yaml
from pydantic import Field

from diffretriever.schemas.base import Model
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, RetrieverConfig, is_neural

Regime: TypeAlias = Literal["zero-shot", "fine-tuned"]
Method: TypeAlias = Literal["masked", "generated", "pooled", "library", "bm25"]
Vectors: TypeAlias = Literal["one", "many"]


class ProtocolRule(Model):
    """Settings of the retrievers that it fits."""

    methods: tuple[Method, ...] = ()
    """Methods of the retriever; none: all."""
    regime: Regime | None = None
    """None: both."""
    vectors: Vectors | None = None
    """Whether a text has one vector, or may have more; None: both."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fields of the retriever."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Options of the search."""

    def fits(self, method: str, regime: Regime, vectors: Vectors) -> bool:
        """Return whether it applies to a retriever."""
        return (
            (not self.methods or method in self.methods)
            and self.regime in (None, regime)
            and self.vectors in (None, vectors)
        )


class Protocol(Model):
    """A named list of rules."""

    id: str
    about: str
    """Part of a sentence, for people."""
    extends: str | None = None
    """Protocol whose rules come first."""
    rules: tuple[ProtocolRule, ...]


class Setup(NamedTuple):
    """A retriever, and how to search with it."""

    config: RetrieverConfig
    search: Mapping[str, Any]
    """Options of the search, as `SearchOptions` names them; those left out are at their defaults."""


@cache
def protocols() -> dict[str, Protocol]:
    """Return every protocol by its name, with the rules of those that it extends before its own."""
    text = files("diffretriever").joinpath("protocols.yaml").read_text("utf-8")
    read = {name: Protocol.model_validate({"id": name, **values}) for name, values in yaml.safe_load(text).items()}
    return {name: _extended(protocol, read) for name, protocol in read.items()}


def under_protocol(config: RetrieverConfig, name: str, regime: Regime | None = None) -> Setup:
    """Apply the rules of a protocol to a retriever. Default regime: fine-tuned, if the retriever has an adapter."""
    regime = regime or ("fine-tuned" if has_adapter(config) else "zero-shot")
    vectors: Vectors = "one" if config.max_vectors("query") == config.max_vectors("passage") == 1 else "many"
    search = dict[str, Any]()
    for rule in protocols()[name].rules:
        if rule.fits(config.method, regime, vectors):
            config = with_settings(config, rule.settings)
            search |= rule.search
    return Setup(config, search)


def with_settings(config: RetrieverConfig, settings: Mapping[str, Any]) -> RetrieverConfig:
    """Return `config` with the fields in `settings`, nested ones included, replaced."""
    return RETRIEVER_ADAPTER.validate_python(_merged(config.model_dump(mode="json"), settings))


def has_adapter(config: RetrieverConfig) -> bool:
    """Return whether a retriever names an adapter."""
    return is_neural(config) and config.backbone.adapter is not None


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, change in changes.items():
        merged[key] = _merged(merged[key], change) if isinstance(change, dict) else change
    return merged


def _extended(protocol: Protocol, known: Mapping[str, Protocol]) -> Protocol:
    if protocol.extends is None:
        return protocol
    before = _extended(known[protocol.extends], known)
    return protocol.model_copy(update={"rules": (*before.rules, *protocol.rules)})
