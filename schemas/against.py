"""Other systems that budgets are measured against: how they are named on a command line, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from schemas.base import Model
from schemas.sweep import SweepMode


class AgainstTest(Model):
    """The fixed budget, or an oracle over budgets, less another system, by the paired two-sided t-test over queries."""

    collection: str
    """As collection/split; `average` weighs every set alike, and its test pools the queries."""
    mode: SweepMode
    """Score of the budgets; the other system is one run, whatever made it."""
    system: str
    """Name of the other system."""
    system_mean: float
    side: Literal["fixed", "query", "passage", "joint"]
    """The fixed budget, or what the oracle adapts."""
    mean: float
    difference: float
    """Mean less the other system's."""
    interval: tuple[float, float]
    """Bootstrap 95% interval of the difference."""
    carried: float | None
    """Difference of what carries over of the oracle; None for the fixed budget, or without such evidence."""
    t_test: float
    """p of the difference."""
    t_test_holm: float
    """The same, corrected by Holm for the four sides."""


def runs_by_name(given: Sequence[str], n_sweeps: int) -> dict[str, tuple[Path, ...]]:
    """Return name → runs, one for each sweep, from texts such as `BM25=runs/bm25.trec`.

    Raises:
        ValueError: a text of another form, or a name that has not a run for each sweep.
    """
    runs: dict[str, list[Path]] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise ValueError(f"--against '{text}': write NAME=RUN.trec, for example BM25=runs/bm25.trec")
        runs.setdefault(name, []).append(Path(path))
    for name, paths in runs.items():
        if len(paths) != n_sweeps:
            raise ValueError(
                f"--against {name} has {len(paths)} runs, but there are {n_sweeps} --sweeps: give {name}=RUN.trec once "
                "for each sweep, in their order"
            )
    return {name: tuple(paths) for name, paths in runs.items()}
