"""Base classes of all schemas: a frozen model that rejects unknown keys, and values with a text form."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, core_schema


def shortened(text: str, most: int = 60) -> str:
    """Shorten a text to `most` characters (at least three) by replacing its middle with `…`."""
    if len(text) <= most:
        return text
    kept = max(most, 3) - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"


def suggest(wrong: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return " Did you mean 'x'?" with the most similar known name, or else a list of the known names.

    `cutoff` is the lowest similarity, as in `difflib.get_close_matches`.
    """
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=cutoff)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(names)}."


def counted(count: int, units: str) -> str:
    """Return a count with its unit, which you pass in the plural: `1 passage`, `2,000 passages`."""
    return f"{count:,} {re.sub('ies$', 'y', units).removesuffix('s') if count == 1 else units}"


def refuse_unknown_keys(values: Any, known: Iterable[str], where: str) -> Any:
    """Return `values`; raise `ValueError` if it is a mapping with an unknown key."""
    if not isinstance(values, dict):
        return values
    names = set(known)
    for key in values:
        if key not in names:
            wrong = shortened(str(key))
            raise ValueError(f"unknown key '{wrong}' in {where}.{suggest(wrong, names)}")
    return values


def split_at_commas(value: Any) -> Any:
    """Split a string at its commas; return other values unchanged."""
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


_ALTERNATIVE = re.compile(r"str|int|float|bool|constrained-.*|.*\[.*")
"""Alternative of a union, which pydantic adds to the name of the field."""

CommaSeparated: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(split_at_commas)]
"""A list of strings, or one string with commas."""


def error_messages(error: ValidationError, shown: Callable[[str], str] = str) -> list[str]:
    """Return each validation error as `field: message` or `field is required`, with fields as `shown`."""
    messages = []
    for item in error.errors(include_url=False):
        parts = [str(part) for part in item["loc"]]
        field = shown(".".join(part for part in parts if _ALTERNATIVE.fullmatch(part) is None)) if parts else ""
        message = str(item["msg"]).removeprefix("Value error, ")
        if item["type"] == "missing":
            message = f"{field} is required"
        elif field:
            message = f"{field}: {message}"
        messages.append(message)
    return messages


class Model(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        return refuse_unknown_keys(values, cls.model_fields, cls.__name__)


def differing_fields(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the differing fields as `outer.inner: one != other`, sorted. A missing field counts as None."""
    ours, theirs = flat_fields(one), flat_fields(other)
    keys = sorted(ours.keys() | theirs.keys())
    return [f"{k}: {ours.get(k)} != {theirs.get(k)}" for k in keys if ours.get(k) != theirs.get(k)]


def flat_fields(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested fields to `outer.inner` → value, each name preceded by `prefix`."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update(flat_fields(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat


class TextForm:
    """Base of frozen dataclasses of integers that configs store as text: `parse` is the inverse of `str`."""

    __slots__ = ()
    text_form: ClassVar[re.Pattern[str]]
    """Pattern of the text form, with a group for each field."""
    fix: ClassVar[str]
    """End of the message for another text."""

    def __init__(self, *numbers: int) -> None: ...

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; raises `ValueError` for anything else."""
        match = cls.text_form.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not a {cls.fix}")
        return cls(*map(int, match.groups()))

    @classmethod
    def _validate(cls, value: Any) -> Self:
        return value if isinstance(value, cls) else cls.parse(str(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read and write the text form in pydantic models."""
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.to_string_ser_schema(),
            json_schema_input_schema=core_schema.str_schema(pattern=cls.text_form.pattern),
        )
