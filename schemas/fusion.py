"""Fusion methods, and named runs of flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from diffretriever.schemas.locations import StorePath, parse_location

Fusion: TypeAlias = Literal["min-max", "z-score", "reciprocal-rank", "linear"]
"""Fusion method: how a result list's scores become summands, before weights. All but `reciprocal-rank`, which is
1 / (60 + rank), subtract the query's lowest score. `min-max` then divides by the range (Eq. 4 of arXiv 2605.07210),
`z-score` by the standard deviation; `linear` does not, for lists with comparable scores or tuned weights. A passage
that is not in a list adds 0."""


def named_runs(values: Sequence[str], flag: str) -> dict[str, Path | StorePath]:
    """Return name → path from values of a flag such as `BM25=runs/bm25.trec`; the default name is the file's stem.

    Raises:
        ValueError: a value is invalid or a name is repeated; the message names the flag.
    """
    paths: dict[str, Path | StorePath] = {}
    for text in values:
        name, equals, path = text.partition("=")
        location = parse_location(path if equals else text)
        name = name.strip() if equals else PurePosixPath(str(location)).stem
        if not (name and text.removesuffix("=") == text):
            raise ValueError(f"{flag} '{text}': write NAME=PATH, for example BM25=runs/bm25.trec")
        if name in paths:
            raise ValueError(f"{flag}: the name {name} is repeated: give each its own name")
        paths[name] = location
    return paths
