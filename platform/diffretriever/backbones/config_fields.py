"""Strict reading of config.json: a field that is not understood is an error, never ignored.

A dropped field (a rope scaling, an extra norm) leaves a model that runs and returns plausible nonsense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOOKKEEPING = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "dtype",
        "initializer_range",
        "model_type",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields of every family that do not change what is computed here."""

TOKEN_IDS = frozenset({"bos_token_id", "eos_token_id", "mask_token_id", "pad_token_id"})


@dataclass(frozen=True)
class ConfigFields:
    """What a family knows about the fields of its config.json."""

    required: frozenset[str]
    """Read; an error when absent or null."""
    optional: frozenset[str] = frozenset()
    """Read where present."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Not read: the computation here is right only for these values. Absent counts as right."""
    ignored: frozenset[str] = frozenset()
    """Not read: no effect on what is computed here."""

    def check(self, config: Mapping[str, Any], file: Path) -> None:
        """Refuse a config with a field that is unknown, missing or of a value not computed here.

        Raises:
            ValueError: Naming the file and the field.
        """
        known = self.required | self.optional | self.fixed.keys() | self.ignored | BOOKKEEPING | TOKEN_IDS
        for name in config:
            if name not in known:
                raise ValueError(
                    f"{file}: unknown field '{name}' (= {config[name]!r}): "
                    "it may change what the model computes. "
                    "If it does not, remove it from the file."
                )
        for name in sorted(self.required):
            if config.get(name) is None:
                raise ValueError(f"{file}: field '{name}' is missing.")
        for name, allowed in self.fixed.items():
            if name in config and config[name] not in allowed:
                raise ValueError(f"{file}: field '{name}' is {config[name]!r}; only {_listed(allowed)} is supported.")


def pick(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields that are present and not null."""
    return {name: config[name] for name in names if config.get(name) is not None}


def first_id(value: int | list[int] | None) -> int | None:
    """Return a token id from a config field that may hold one, several or none."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(repr(value) for value in values)
