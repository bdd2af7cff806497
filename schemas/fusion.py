"""Fusing finished runs: the ways to fuse, runs with names, and the file that an evaluation of fused runs leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from diffretriever.schemas.base import Model
from diffretriever.schemas.places import StorePath, as_place

Fusion: TypeAlias = Literal["min-max", "z-score", "reciprocal-rank", "linear"]
"""What a passage counts in a list, before weights: its score less the query's lowest, by the range of the query's
scores (Eq. 4 of arXiv 2605.07210); the same by their standard deviation; 1 / (60 + rank); its score less the query's
lowest as it is, which is for lists whose scores are alike or whose weights make them so. One that a list lacks counts
0, which is what the list's last passage counts by all but reciprocal ranks."""


class FusedRun(Model):
    """One way to fuse, less the best single run, by the paired two-sided t-test over queries."""

    fusion: Fusion
    weights: dict[str, float]
    """By run; their sum is 1."""
    tuned: float | None
    """Mean on the queries that the weights were chosen on; None where they were given."""
    mean: float
    difference: float
    """Mean less that of the best single run."""
    interval: tuple[float, float]
    """Bootstrap 95% interval of the difference."""
    t_test: float
    """p of the difference."""
    t_test_holm: float
    """The same, corrected by Holm for all ways to fuse that are reported."""


class FusionReport(Model):
    """The file `fusion.json` of an evaluation: what was fused with which weights, and whether it is worth it."""

    measure: str
    """The first of the measures; means and tests are of it."""
    best: str
    """The single run with the best mean."""
    tuned_by: str | None
    """Measure that chose the weights; None where they were given."""
    tuned_on: str | None
    """Split or file of the qrels that it was computed with."""
    fused: tuple[FusedRun, ...]


def named_runs(given: Sequence[str], flag: str, example: str = "BM25=runs/bm25.trec") -> dict[str, Path | StorePath]:
    """Return name → place from texts such as the example.

    Raises:
        ValueError: a text of another form, or a name twice; the message names the flag.
    """
    places: dict[str, Path | StorePath] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name.strip() and equals and path):
            raise ValueError(f"{flag} '{text}': write NAME=PLACE, for example {example}")
        if name in places:
            raise ValueError(f"{flag}: two are called {name}: give each a name of its own")
        places[name] = as_place(path)
    return places
