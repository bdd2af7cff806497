"""The scores that passages are ranked by: lists that an index is searched for, alone or summed.

A mode is known by its text, which is the same however its lists were put in order: `bm25+dense` is `dense+bm25`, and
`dense+sparse` is `hybrid`, the paper's name for it.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import AfterValidator, Field, WithJsonSchema

from diffretriever.schemas.base import suggest

EncodedList: TypeAlias = Literal["dense", "sparse"]
"""A list of passages that encoded queries are searched for by."""
ListName: TypeAlias = EncodedList | Literal["bm25"]
"""A list of passages that a search of an index gives; `bm25` goes by the texts alone."""
Way: TypeAlias = Annotated[str, Field(pattern="^[a-z]+(_[a-z]+)*$")]
"""How passages are found by a score, as the search classes name it: `stream` reads all vectors or impacts from the
table, `compressed` what a codec made of the vectors; `codes` and `postings` are the files that `accelerate_index.py`
makes, `candidates` its candidate index. All but the last find the same passages."""

_HYBRID = "hybrid"
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
        ValueError: it names a list that is not there, or one twice.
    """
    lists = _MODES[_HYBRID] if text == _HYBRID else text.split("+")
    if len({*lists}) < len(lists) or not {*lists} <= {*_LISTS}:
        raise ValueError(f"'{text}' is no score to rank by.{suggest(text, _MODES)} There are {', '.join(_MODES)}.")
    return mode_of(lists)


Mode: TypeAlias = Annotated[str, AfterValidator(parse_mode), WithJsonSchema({"type": "string", "enum": [*_MODES]})]
"""A score to rank by: `dense`, `sparse`, `hybrid` (the paper's sum of both), `bm25`, or a sum such as `dense+bm25`."""


def lists_of(mode: Mode) -> tuple[ListName, ...]:
    """Return the lists that a mode sums: one, or several."""
    return _MODES[parse_mode(mode)]


def modes_of(lists: Collection[ListName]) -> tuple[Mode, ...]:
    """Return all modes that these lists are enough for."""
    return tuple(mode for mode, needed in _MODES.items() if {*needed} <= {*lists})
