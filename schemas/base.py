"""The base of every pydantic model here: frozen, and unknown keys are errors that suggest the right one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name nearest to `wrong`, or a list of the known names."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(names)}."


def refuse_unknown_keys(values: Any, known: Iterable[str], where: str) -> Any:
    """Raise `ValueError` naming the first key of mapping `values` that is not among `known`."""
    if not isinstance(values, dict):
        return values
    names = set(known)
    for key in values:
        if key not in names:
            raise ValueError(f"unknown key '{key}' in {where}.{suggest(str(key), names)}")
    return values


def _split_at_commas(value: Any) -> Any:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


CommaSeparated: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_split_at_commas)]
"""Several strings, or one with commas between them."""


class Model(BaseModel):
    """A frozen value whose unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        return refuse_unknown_keys(values, cls.model_fields, cls.__name__)
