"""The representation budget (K_q, K_p): the number of slots of a query and a passage (paper §4.4)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import PlainSerializer, PlainValidator

from diffretriever.schemas.base import TextForm
from diffretriever.schemas.locations import StorePath, parse_location


@dataclass(frozen=True, slots=True)
class Budget(TextForm):
    """A pair of slot counts, written `q4p16` in configs, columns and file names.

    Example:
        >>> str(Budget(4, 16))
        'q4p16'
        >>> Budget.parse("q4p16").passage
        16
    """

    text_form = re.compile(r"q([1-9]\d*)p([1-9]\d*)")
    fix = "budget: write q<K_q>p<K_p>, for example q4p16"
    query: int
    passage: int

    def __post_init__(self) -> None:
        if self.query < 1 or self.passage < 1:
            raise ValueError(f"a budget needs at least one slot on each side, got {self.query} and {self.passage}")

    def __str__(self) -> str:
        return f"q{self.query}p{self.passage}"


def is_selection(value: Any) -> bool:
    """Return whether the value is the path of a selection.json, not a budget."""
    return isinstance(value, str | Path | StorePath) and str(value).endswith(".json")


def _validate_choice(value: Any) -> Budget | Path | StorePath:
    if isinstance(value, Budget):
        return value
    return parse_location(value) if is_selection(value) else Budget.parse(str(value))


BudgetChoice: TypeAlias = Annotated[
    Budget | Path | StorePath, PlainValidator(_validate_choice), PlainSerializer(str, return_type=str)
]
"""A budget, or the path or URI of a budget sweep's selection.json, which `presets` resolves."""
