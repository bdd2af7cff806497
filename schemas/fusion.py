"""Fusing finished runs: the ways to fuse, and runs with names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from diffretriever.schemas.places import StorePath, as_place

Fusion: TypeAlias = Literal["min-max", "z-score", "reciprocal-rank", "linear"]
"""What a passage counts in a list, before weights: its score less the query's lowest, by the range of the query's
scores (Eq. 4 of arXiv 2605.07210); the same by their standard deviation; 1 / (60 + rank); its score less the query's
lowest as it is, which is for lists whose scores are alike or whose weights make them so. One that a list lacks counts
0, which is what the list's last passage counts by all but reciprocal ranks."""


def named_runs(given: Sequence[str], flag: str) -> dict[str, Path | StorePath]:
    """Return name → place from texts such as `BM25=runs/bm25.trec`; a place alone is called by its file.

    Raises:
        ValueError: a name twice; the message names the flag.
    """
    places: dict[str, Path | StorePath] = {}
    for text in given:
        name, equals, path = text.partition("=")
        place = as_place(path if equals else text)
        name = name.strip() if equals else PurePosixPath(str(place)).stem
        if not (name and text.removesuffix("=") == text):
            raise ValueError(f"{flag} '{text}': write NAME=PLACE, for example BM25=runs/bm25.trec")
        if name in places:
            raise ValueError(f"{flag}: two are called {name}: give each a name of its own")
        places[name] = place
    return places
