"""Scores of documents, computed from the scores of their chunks."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from diffretriever.schemas.base import shortened

FIRST = "first"
_PATTERN = f"^(max|{FIRST}|mean-[1-9][0-9]{{0,3}})$"


def chunks_averaged(score: str) -> int:
    """Return the number of best chunks whose mean scores a document: N for `mean-N`, otherwise 1.

    Raises:
        ValueError: the score is unknown.
    """
    if re.match(_PATTERN, score) is None:
        raise ValueError(f"documents: unknown score '{shortened(score)}': use max, first, or mean-3 with any number")
    return int(score.partition("-")[2] or 1)


def _checked(score: str) -> str:
    chunks_averaged(score)
    return score


DocumentScore: TypeAlias = Annotated[str, AfterValidator(_checked), Field(json_schema_extra={"pattern": _PATTERN})]
"""Score of a document: `max`, its best chunk (MaxP); `first`, its first chunk (FirstP); `mean-N`, the mean of its N
best chunks, or of all if it has fewer."""
