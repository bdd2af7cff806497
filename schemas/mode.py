"""Scoring modes: the score that ranks passages, from one scorer or a sum of several.

Each mode has one canonical text: `bm25+dense` becomes `dense+bm25`, and `dense+sparse` becomes `hybrid`, its name in
the paper. `dense+0.3bm25` adds to the dense score 0.3 times the BM25 score, divided by the query's highest BM25 score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import combinations
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import AfterValidator, Field, WithJsonSchema

from diffretriever.schemas.base import shortened, suggest

EncodedList: TypeAlias = Literal["dense", "sparse"]
"""A scorer that needs encoded queries."""
ListName: TypeAlias = EncodedList | Literal["bm25"]
"""A scorer, and the result list it returns. `bm25` needs only the texts."""
Way: TypeAlias = Annotated[str, Field(pattern="^[a-z]+(_[a-z]+)*$")]
"""A search method: `stream` scans the vectors or impacts of the table, `compressed` scans the codec's vectors.
`codes`, `postings` and `candidates` use the files of `accelerate_index.py`. All except `candidates` are exact."""

_HYBRID = "hybrid"
_HYBRID_SUM = "dense+sparse"
_ENCODED: tuple[EncodedList, ...] = get_args(EncodedList)
_LISTS: tuple[ListName, ...] = (*_ENCODED, "bm25")


def mode_of(lists: Collection[str]) -> str:
    """Return the mode that sums these lists, in any order."""
    named = [name for name in _LISTS if name in lists]
    return _HYBRID if named == list(_ENCODED) else "+".join(named)


_MODES: dict[str, tuple[ListName, ...]] = {
    mode_of(lists): lists for size in range(1, len(_LISTS) + 1) for lists in combinations(_LISTS, size)
}


def parse_mode(text: str) -> str:
    """Return the canonical text of a mode.

    Raises:
        ValueError: a scorer is unknown or repeated, or a weight is invalid.
    """
    weights, is_weighted = _parsed(text)
    if not is_weighted:
        return mode_of(weights)
    if len(weights) == 1 or not all(0 < weight < math.inf for weight in weights.values()):
        raise ValueError(
            f"'{shortened(text)}': numbers are weights above 0 in a sum of several lists, such as dense+0.3bm25"
        )
    # Without any number, the text would be an unweighted mode.
    hidden = 1.0 if {*weights.values()} != {1.0} else None
    return "+".join(
        name if weights[name] == hidden else f"{_written(weights[name])}{name}" for name in _LISTS if name in weights
    )


def _written(weight: float) -> str:
    return f"{Decimal(repr(weight)).normalize():f}"


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[Mapping[str, float], bool]:
    """Return list → weight, and whether the mode has explicit weights."""
    terms = [_TERM.fullmatch(term) for term in (_HYBRID_SUM if text == _HYBRID else text).split("+")]
    weights = {term["list"]: float(term["weight"] or 1) for term in terms if term is not None}
    if len(weights) < len(terms) or not {*weights} <= {*_LISTS}:
        raise ValueError(
            f"unknown scoring mode '{shortened(text)}'.{suggest(text, _MODES)} Modes: {', '.join(_MODES)}."
        )
    return weights, any(term["weight"] for term in terms if term is not None)


_WEIGHT = r"(\d+\.?\d*|\.\d+)?"
_TERM = re.compile(rf"(?P<weight>{_WEIGHT})(?P<list>[a-z][a-z0-9]*)")
_OWN_TERM = rf"{_WEIGHT}({'|'.join(_LISTS)})"
_PATTERN = rf"^{_OWN_TERM}(\+{_OWN_TERM})+$"
_MAX_CHARS = 200
"""Maximum length of a mode's text."""
_WEIGHTED = {"type": "string", "pattern": _PATTERN, "maxLength": _MAX_CHARS}

Mode: TypeAlias = Annotated[
    str,
    Field(max_length=_MAX_CHARS),
    AfterValidator(parse_mode),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": [*_MODES]}, _WEIGHTED]}),
]
"""Scoring mode: `dense`, `sparse`, `hybrid` (the paper's sum of both), `bm25`, or a sum such as `dense+bm25` or
`dense+0.3bm25`."""


def lists_of(mode: Mode) -> tuple[ListName, ...]:
    """Return the result lists that a mode sums."""
    return _MODES[unweighted(mode)]


def weights_of(mode: Mode) -> tuple[float, ...] | None:
    """Return the weight of each of `lists_of`; None for a mode without weights."""
    weights, is_weighted = _parsed(mode)
    return tuple(weights[name] for name in lists_of(mode)) if is_weighted else None


def unweighted(mode: Mode) -> Mode:
    """Return the mode without its weights."""
    return mode_of(_parsed(mode)[0])


def modes_of(lists: Collection[ListName]) -> tuple[Mode, ...]:
    """Return all modes that these lists support."""
    return tuple(mode for mode, needed in _MODES.items() if {*needed} <= {*lists})
