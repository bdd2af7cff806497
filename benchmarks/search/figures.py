"""The figures of this benchmark and how they are laid out."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from diffretriever.schemas.base import Model

EXACT_COLUMNS = ("exact", "p50 ms", "of fp32", "R@10", "R@100", "goal")
CANDIDATE_COLUMNS = (
    "candidates",
    "p50 ms",
    "p95 ms",
    "first p50",
    "R@10",
    "R@100",
    "build s",
    "index MB",
    "own MB",
    "peak MB",
    "goal",
)
HYBRID_COLUMNS = (
    "hybrid",
    "p50 ms",
    "p95 ms",
    "first p50",
    "dense",
    "BM25",
    "build s",
    "index MB",
    "build peak MB",
    "peak MB",
    "goal",
)
_OF_FP32 = 0.35


class Goal(NamedTuple):
    """What a candidate index is meant to reach, at the budget that its calibration picked."""

    p50: float
    """Milliseconds, at most."""
    recall_100: float
    recall_10: float = 0.0
    build: float = math.inf
    """Seconds, at most."""

    def verdict(self, each: Candidates, run: Timed) -> str:
        """Return what is meant, and whether it is reached."""
        seconds = each.built.seconds if each.built is not None else 0.0
        enough = run.recall_10 >= self.recall_10 and run.recall_100 >= self.recall_100
        met = run.p50 <= self.p50 and enough and seconds <= self.build
        parts = [f"{self.p50:.0f} ms", f"R@100 {self.recall_100}"]
        parts += [f"R@10 {self.recall_10:.0f}"] if self.recall_10 else []
        parts += [f"{self.build:.0f} s"] if self.build < math.inf else []
        return f"{', '.join(parts)}: {'met' if met else 'MISSED'}"


GOALS = {
    "100k-16-384": Goal(6, 0.99, recall_10=1, build=30),
    "60k-16-384": Goal(4, 0.99, recall_10=1),
    "1m-4-384": Goal(8, 0.99),
    "8.84m-4-384": Goal(40, 0.98),
}
"""By size."""
HYBRID_GOALS = {"8.84m-4-384": 100.0}
"""Milliseconds, by size."""


class Timed(Model):
    """One way to search."""

    name: str
    """What it is."""
    ms: list[float]
    """One a query."""
    first_ms: tuple[float, ...] = ()
    """Of the same queries before, when what they read may lie on the disk; empty where that was not measured."""
    recall_10: float
    """Share of the exact 10 best that it found."""
    recall_100: float
    """Share of the exact 100 best."""

    @property
    def p50(self) -> float:
        """Median time of a query."""
        return statistics.median(self.ms)

    @property
    def p95(self) -> float:
        """Time that one query in twenty exceeds."""
        return _p95(self.ms)


class Built(Model):
    """What making an index took."""

    seconds: float
    """Making it; reading the table included."""
    mb: float
    """Size on disk."""


class Candidates(Model):
    """One candidate index, at its own budget first and at others."""

    name: str
    """What it is."""
    built: Built | None
    """None where it takes nothing beside what is there."""
    runs: list[Timed]
    """One a budget."""
    own_mb: float
    """Memory of the searching process, mapped files left out."""
    peak_mb: float
    """Most memory that it ever held, mapped files and, for others, building included."""


class CountedWords(Model):
    """BM25 of the passages' texts."""

    built: Built
    """Making it."""
    peak_mb: float
    """Most memory of the process that made it."""


class Hybrid(Model):
    """The sum of dense scores and BM25, each of a thousand passages, one after the other."""

    ms: list[float]
    """One a query, of all."""
    first_ms: list[float]
    """Of the same queries before, when what they read may lie on the disk."""
    dense_ms: list[float]
    """One a query, of the candidates alone."""
    bm25_ms: list[float]
    """One a query, of BM25 alone."""
    peak_mb: float
    """Most memory of the searching process, mapped files included."""
    words: CountedWords
    """Of the same texts."""

    def row(self, goal: float | None) -> list[str]:
        """Return the row of the printed table; the goal is in milliseconds."""
        p50 = statistics.median(self.ms)
        parts = [p50, _p95(self.ms), *map(statistics.median, (self.first_ms, self.dense_ms, self.bm25_ms))]
        sizes = [self.words.built.seconds, self.words.built.mb, self.words.peak_mb, self.peak_mb]
        verdict = "" if goal is None else f"{goal:.0f} ms: {'met' if p50 <= goal else 'MISSED'}"
        return ["sketch + BM25", *(f"{ms:.1f}" for ms in parts), *(f"{each:.0f}" for each in sizes), verdict]


class Figures(Model):
    """Of one case."""

    case: str
    """Passages, K_p, dimensions and spread."""
    codes: Built
    """The 8-bit codes and vectors beside the table, without which candidates are not."""
    exact_goal: bool
    """Whether the goal of exact searches is for this case."""
    goal: Goal | None
    """Of candidates."""
    exact: list[Timed]
    """The first is torch in fp32."""
    candidates: list[Candidates]
    """Ours, then other libraries."""
    hybrid: Hybrid | None
    """None where it was not asked for."""

    def exact_rows(self) -> list[list[str]]:
        """Return the rows of the table of exact searches."""
        base = self.exact[0]
        rows = []
        for each in self.exact:
            # Taken in turn, so that what slows the machine for a while slows both.
            ratio = statistics.median(own / other for own, other in zip(each.ms, base.ms, strict=False))
            goal = _verdict(ratio, _OF_FP32) if self.exact_goal and each.name.startswith("ours: codes") else ""
            recalls = [f"{each.recall_10:.3f}", f"{each.recall_100:.3f}"]
            rows.append([each.name, f"{each.p50:.1f}", f"{ratio:.2f}", *recalls, goal])
        return rows

    def candidate_rows(self) -> list[list[str]]:
        """Return the rows of the table of candidates."""
        return [self._row(each, run) for each in self.candidates for run in each.runs]

    def _row(self, each: Candidates, run: Timed) -> list[str]:
        first = run is each.runs[0]
        built = ["", ""] if each.built is None or not first else [f"{each.built.seconds:.1f}", f"{each.built.mb:.0f}"]
        goal = self.goal.verdict(each, run) if self.goal and first and each.name.startswith("ours") else ""
        recalls = [f"{run.recall_10:.3f}", f"{run.recall_100:.3f}"]
        memory = [f"{each.own_mb:.0f}", f"{each.peak_mb:.0f}"] if first else ["", ""]
        times = [f"{run.p50:.1f}", f"{run.p95:.1f}", f"{statistics.median(run.first_ms):.1f}" if run.first_ms else ""]
        return [f"{each.name}, {run.name}", *times, *recalls, *built, *memory, goal]


def _p95(ms: list[float]) -> float:
    return statistics.quantiles(ms, n=20, method="inclusive")[18] if len(ms) > 1 else ms[0]


def _verdict(value: float, goal: float) -> str:
    return f"<= {goal:.2f}, {'met' if value <= goal else 'MISSED'}"
