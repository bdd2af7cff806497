"""The scores that passages are ranked by: lists that an index is searched for, alone or summed.

A mode is known by its text, which is the same however its lists were put in order: `bm25+dense` is `dense+bm25`, and
`dense+sparse` is `hybrid`, the paper's name for it. Numbers give weights: `dense+0.3bm25` adds the dense score
and 0.3 times the passage's BM25 score divided by the query's highest BM25 score.
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
"""A list of passages that encoded queries are searched for by."""
ListName: TypeAlias = EncodedList | Literal["bm25"]
"""A list of passages that a search of an index gives; `bm25` goes by the texts alone."""
Way: TypeAlias = Annotated[str, Field(pattern="^[a-z]+(_[a-z]+)*$")]
"""How passages are found by a score, as the search classes name it: `stream` reads all vectors or impacts from the
table, `compressed` what a codec made of the vectors; `codes` and `postings` are the files that `accelerate_index.py`
makes, `candidates` its candidate index. All but the last find the same passages."""

_HYBRID = "hybrid"
_HYBRID_SUM = "dense+sparse"
_ENCODED: tuple[EncodedList, ...] = get_args(EncodedList)
_LISTS: tuple[ListName, ...] = (*_ENCODED, "bm25")


def mode_of(lists: Collection[str]) -> str:
    """Return the text of the mode that sums these lists; it does not depend on their order."""
    named = [name for name in _LISTS if name in lists]
    return _HYBRID if named == list(_ENCODED) else "+".join(named)


_MODES: dict[str, tuple[ListName, ...]] = {
    mode_of(lists): lists for size in range(1, len(_LISTS) + 1) for lists in combinations(_LISTS, size)
}


def parse_mode(text: str) -> str:
    """Return the mode that a text names, as it is always written.

    Raises:
        ValueError: it names a list that is not there, or one twice; or its numbers are no weights.
    """
    weights, is_weighted = _parsed(text)
    if not is_weighted:
        return mode_of(weights)
    if len(weights) == 1 or not all(0 < weight < math.inf for weight in weights.values()):
        raise ValueError(
            f"'{shortened(text)}': numbers are weights above 0 in a sum of several lists, such as dense+0.3bm25"
        )
    # With no number at all it would be another mode.
    hidden = 1.0 if {*weights.values()} != {1.0} else None
    return "+".join(
        name if weights[name] == hidden else f"{_written(weights[name])}{name}" for name in _LISTS if name in weights
    )


def _written(weight: float) -> str:
    """Return a weight with all its digits and no exponent, which no mode has."""
    return f"{Decimal(repr(weight)).normalize():f}"


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[Mapping[str, float], bool]:
    """Return list → weight, and whether any weight is written."""
    terms = [_TERM.fullmatch(term) for term in (_HYBRID_SUM if text == _HYBRID else text).split("+")]
    weights = {term["list"]: float(term["weight"] or 1) for term in terms if term is not None}
    if len(weights) < len(terms) or not {*weights} <= {*_LISTS}:
        raise ValueError(
            f"'{shortened(text)}' is no score to rank by.{suggest(text, _MODES)} There are {', '.join(_MODES)}."
        )
    return weights, any(term["weight"] for term in terms if term is not None)


_WEIGHT = r"(\d+\.?\d*|\.\d+)?"
_TERM = re.compile(rf"(?P<weight>{_WEIGHT})(?P<list>[a-z][a-z0-9]*)")
_OWN_TERM = rf"{_WEIGHT}({'|'.join(_LISTS)})"
_PATTERN = rf"^{_OWN_TERM}(\+{_OWN_TERM})+$"
_MAX_CHARS = 200
"""Of a mode's text."""
_WEIGHTED = {"type": "string", "pattern": _PATTERN, "maxLength": _MAX_CHARS}

Mode: TypeAlias = Annotated[
    str,
    Field(max_length=_MAX_CHARS),
    AfterValidator(parse_mode),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": [*_MODES]}, _WEIGHTED]}),
]
"""A score to rank by: `dense`, `sparse`, `hybrid` (the paper's sum of both), `bm25`, or a sum such as `dense+bm25` or,
with weights, `dense+0.3bm25`."""


def lists_of(mode: Mode) -> tuple[ListName, ...]:
    """Return the lists that a mode sums: one, or several."""
    return _MODES[unweighted(mode)]


def weights_of(mode: Mode) -> tuple[float, ...] | None:
    """Return what the scores of each of `lists_of` are multiplied with; None for a mode without weights."""
    weights, is_weighted = _parsed(mode)
    return tuple(weights[name] for name in lists_of(mode)) if is_weighted else None


def unweighted(mode: Mode) -> Mode:
    """Return the mode that sums the same lists without weights."""
    return mode_of(_parsed(mode)[0])


def modes_of(lists: Collection[ListName]) -> tuple[Mode, ...]:
    """Return all modes that these lists are enough for."""
    return tuple(mode for mode, needed in _MODES.items() if {*needed} <= {*lists})
