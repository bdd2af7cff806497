"""The study's tables: every arm's figures, and each change against what it changes, by paired tests."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from benchmarks._study_run import Arm, Measured
from diffretriever.evaluation.statistics import holm, paired_p
from diffretriever.evaluation.tables import markdown_table

_MODES = ("dense", "sparse", "hybrid")


def report(arms: dict[str, Arm], results: list[Measured]) -> str:
    """Return Markdown: nDCG@10 of every arm, then every change with its paired test."""
    found = {name: [result for result in results if result.arm == name] for name in arms}
    done = {name: runs for name, runs in found.items() if runs}
    collections = sorted({key.split()[0] for runs in done.values() for run in runs for key in run.values})
    return f"{_figures(arms, done, collections)}\n\n{_changes(arms, done, collections)}"


def _figures(arms: dict[str, Arm], done: dict[str, list[Measured]], collections: list[str]) -> str:
    rows: list[list[str]] = []
    for name, runs in done.items():
        for budget in _budgets(runs[0]):
            figures = [" / ".join(_figure(runs, c, budget, mode) for mode in _MODES) for c in collections]
            pairs = [run.slot_cosines[budget] for run in runs]
            cosines = " / ".join(f"{statistics.mean(values):.2f}" for values in zip(*pairs, strict=True))
            rows.append([name, arms[name].about, budget, str(len(runs)), *figures, cosines])
    titles = [f"{collection} D / S / H" for collection in collections]
    return markdown_table(rows, ["arm", "what it is", "budget", "seeds", *titles, "slot cosine q / p"])


def _figure(runs: list[Measured], collection: str, budget: str, mode: str) -> str:
    key = f"{collection} {budget} {mode}"
    means = [statistics.mean(run.values[key].values()) for run in runs if key in run.values]
    if not means:
        return "-"
    spread = f" ±{(max(means) - min(means)) / 2:.3f}" if len(means) > 1 else ""
    return f"{statistics.mean(means):.3f}{spread}"


def _changes(arms: dict[str, Arm], done: dict[str, list[Measured]], collections: list[str]) -> str:
    """Differences of queries' means over the seeds that both arms have; p values corrected over the whole table."""
    rows: list[list[str]] = []
    p_values: list[float] = []
    for name, runs in done.items():
        against = done.get(arms[name].against or "")
        if not against:
            continue
        seeds = {run.seed for run in runs} & {run.seed for run in against}
        for budgets in _compared(runs[0], against[0]):
            for mode in _MODES:
                pair = zip((runs, against), budgets, strict=True)
                ours, theirs = (_queries(each, seeds, collections, budget, mode) for each, budget in pair)
                if not ours or ours.keys() != theirs.keys():
                    continue
                difference = statistics.mean(ours.values()) - statistics.mean(theirs.values())
                p_values.append(paired_p(ours, theirs))
                place = " / ".join(dict.fromkeys(budgets))
                rows.append([name, arms[name].against or "", place, mode, str(len(seeds)), f"{difference:+.4f}"])
    cells = [[*row, "< 0.001" if p < 0.001 else f"{p:.3f}"] for row, p in zip(rows, holm(p_values), strict=True)]
    return markdown_table(cells, ["arm", "against", "budget", "score", "seeds", "difference", "p (Holm)"])


def _compared(ours: Measured, theirs: Measured) -> list[tuple[str, str]]:
    """Return the budgets that both were measured at, or, where there are none, the first of each."""
    shared = [budget for budget in _budgets(ours) if budget in _budgets(theirs)]
    return [(budget, budget) for budget in shared] or [(_budgets(ours)[0], _budgets(theirs)[0])]


def _queries(
    runs: Iterable[Measured], seeds: set[int], collections: list[str], budget: str, mode: str
) -> dict[str, float]:
    """Return each query's mean over the seeds, all collections together."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run.seed not in seeds:
            continue
        for collection in collections:
            for query, value in run.values.get(f"{collection} {budget} {mode}", {}).items():
                values.setdefault(f"{collection} {query}", []).append(value)
    return {query: float(np.mean(each)) for query, each in values.items()}


def _budgets(run: Measured) -> list[str]:
    return list(run.slot_cosines)
