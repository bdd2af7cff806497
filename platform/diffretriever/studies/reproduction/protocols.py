"""The protocols that published rows are run under, read from the YAML file in this package, and a row under one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from diffretriever.schemas.base import suggest
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, RetrieverConfig, is_neural
from diffretriever.studies.reproduction.config import Protocol, PublishedRow, PublishedTable, Regime, Vectors

DEFAULT = ("authors", "paper")
"""What a reproduction runs where nobody says which."""


@dataclass(frozen=True)
class Setup:
    """What a row is run with."""

    config: RetrieverConfig
    search: Mapping[str, Any] = field(default_factory=dict)
    """Options of the search, as `SearchOptions` names them; those left out are at their defaults."""


@cache
def protocols() -> dict[str, Protocol]:
    """Return every protocol by its name, with the rules of those that it extends before its own."""
    text = files("diffretriever.studies.reproduction").joinpath("protocols.yaml").read_text("utf-8")
    read = {name: Protocol.model_validate({"id": name, **values}) for name, values in yaml.safe_load(text).items()}
    return {name: _extended(protocol, read) for name, protocol in read.items()}


def chosen(names: Sequence[str]) -> list[Protocol]:
    """Return the protocols of these names, `DEFAULT` for none."""
    known = protocols()
    for name in names:
        if name not in known:
            raise ValueError(f"--protocol: no protocol '{name}'.{suggest(name, known)}")
    return [known[name] for name in dict.fromkeys(names or DEFAULT)]


def under(table: PublishedTable, protocol: Protocol) -> PublishedTable:
    """Return the table with its rows under the protocol, which is said in its caption."""
    rows = tuple(row.model_copy(update={"protocol": protocol.id}) for row in table.rows)
    caption = f"{table.caption} Protocol {protocol.id}: {protocol.about}."
    return table.model_copy(update={"protocol": protocol.id, "caption": caption, "rows": rows})


def set_up(row: PublishedRow, preset: RetrieverConfig) -> Setup:
    """Return what runs the row: its preset, changed by the protocol that it is under, then by its own settings."""
    config, search = preset, dict[str, Any]()
    regime: Regime = row.regime or ("fine-tuned" if row.needs_adapter or has_adapter(preset) else "zero-shot")
    own = with_settings(preset, row.settings)
    vectors: Vectors = "one" if own.max_vectors("query") == own.max_vectors("passage") == 1 else "many"
    for rule in protocols()[row.protocol].rules if row.protocol is not None else ():
        if rule.fits(preset.method, regime, vectors):
            config = with_settings(config, rule.settings)
            search |= rule.search
    return Setup(with_settings(config, row.settings), search)


def with_settings(config: RetrieverConfig, settings: Mapping[str, Any]) -> RetrieverConfig:
    """Return `config` with the fields in `settings`, nested ones included, replaced."""
    return RETRIEVER_ADAPTER.validate_python(_merged(config.model_dump(mode="json"), settings))


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


def has_adapter(config: RetrieverConfig) -> bool:
    """Return whether a retriever names an adapter."""
    return is_neural(config) and config.backbone.adapter is not None
