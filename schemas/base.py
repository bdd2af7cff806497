"""What all schemas are made with: the frozen base model, values with a text form, and the fields that differ.

Unknown keys are errors that suggest the right one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, core_schema


def shortened(text: str, most: int = 60) -> str:
    """Return a text of at most `most` characters, at least three, as messages quote it: its middle gives way."""
    if len(text) <= most:
        return text
    kept = max(most, 3) - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"


def suggest(wrong: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return " Did you mean 'x'?" for the known name nearest to `wrong`, or a list of the known names.

    Args:
        wrong: the unknown name.
        known: the names to choose from.
        cutoff: least likeness of the two names, 1 for equal ones.
    """
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=cutoff)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(names)}."


def counted(count: int, units: str) -> str:
    """Return a count with its unit: `1 passage`, `2,000 passages`.

    Args:
        count: how many there are.
        units: the unit in the plural.
    """
    return f"{count:,} {re.sub('ies$', 'y', units).removesuffix('s') if count == 1 else units}"


def refuse_unknown_keys(values: Any, known: Iterable[str], where: str) -> Any:
    """Raise `ValueError` naming the first key of mapping `values` that is not among `known`."""
    if not isinstance(values, dict):
        return values
    names = set(known)
    for key in values:
        if key not in names:
            wrong = shortened(str(key))
            raise ValueError(f"unknown key '{wrong}' in {where}.{suggest(wrong, names)}")
    return values


def split_at_commas(value: Any) -> Any:
    """Return the parts of a text with commas in it; anything else as it is."""
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


CommaSeparated: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(split_at_commas)]
"""Several strings, or one with commas between them."""


def mistakes(error: ValidationError) -> list[str]:
    """Return what is wrong with the values that a model was made of, as `field: what`, a sentence each."""
    found = []
    for item in error.errors(include_url=False):
        # Alternatives of a union (`str`, `list[str]`) are no part of the field's name.
        parts = [str(part) for part in item["loc"] if isinstance(part, int) or part.isidentifier()]
        field = ".".join(part for part in parts if part not in {"str", "int"})
        message = "a value is needed" if item["type"] == "missing" else str(item["msg"]).removeprefix("Value error, ")
        found.append(f"{field}: {message}" if field else message)
    return found


class Model(BaseModel):
    """A frozen value whose unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        return refuse_unknown_keys(values, cls.model_fields, cls.__name__)


def differing_fields(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return what differs, as `outer.inner: one != other`, sorted; a missing field counts as None."""
    ours, theirs = flat_fields(one), flat_fields(other)
    keys = sorted(ours.keys() | theirs.keys())
    return [f"{k}: {ours.get(k)} != {theirs.get(k)}" for k in keys if ours.get(k) != theirs.get(k)]


def flat_fields(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of all levels, as `outer.inner` → value; `prefix` stands before each name."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update(flat_fields(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat


class TextForm:
    """A base of frozen dataclasses whose `str` is what `parse` reads.

    Configs and files hold the text, code holds the value.
    """

    __slots__ = ()
    text_form: ClassVar[re.Pattern[str]]
    """What texts look like."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; raises `ValueError` for anything else."""
        raise NotImplementedError

    @classmethod
    def _validate(cls, value: Any) -> Self:
        return value if isinstance(value, cls) else cls.parse(str(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the text form in configs and write it back (the hook pydantic asks for)."""
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.to_string_ser_schema(),
            json_schema_input_schema=core_schema.str_schema(pattern=cls.text_form.pattern),
        )
