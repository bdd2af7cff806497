"""Paired tests between budgets and between ways of scoring.

Legend: C cells, N queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.analysis.data import AnalysisData
from diffretriever.analysis.findings import AVERAGE, averaged
from diffretriever.statistics.intervals import bootstrap_average
from diffretriever.statistics.significance import ALPHA, holm, randomisation_p_each, t_test_p
from schemas.analyse import CellTest, ScoringVariant, SystemTest
from schemas.budget import Budget
from schemas.sweep import SweepMode

_Group: TypeAlias = tuple[str, list[str]]
_Variant: TypeAlias = Literal["single", "pooled slots", "MaxSim"]


def groups(data: AnalysisData) -> list[_Group]:
    """Return each set by itself, and then their average where there are several: (label, names)."""
    alone = [(name, [name]) for name in data.names]
    return [*alone, (AVERAGE, data.names)] if len(alone) > 1 else alone


def smallest(data: AnalysisData) -> Budget:
    """Return the smallest cell: the single representation where the sweep begins at 1."""
    found = data.outcomes[data.names[0], data.modes[0]]
    return Budget(found.query_budgets[0], found.passage_budgets[0])


def systems(data: AnalysisData) -> Iterator[SystemTest]:
    """Yield the smallest, the fixed and the best budget of each column, tested against the smallest."""
    for mode in data.modes:
        for label, names in groups(data):
            found = averaged(data, mode) if label == AVERAGE else data.outcomes[label, mode]
            budgets = {"smallest": smallest(data), "fixed": data.fixed, "best": found.best()}
            differences = {
                system: _pooled(data, mode, names, budget) - _pooled(data, mode, names, budgets["smallest"])
                for system, budget in budgets.items()
            }
            tested = [system for system in ("fixed", "best") if budgets[system] != budgets["smallest"]]
            corrected = dict(zip(tested, holm([t_test_p(differences[s]) for s in tested]), strict=True))
            for system, budget in budgets.items():
                p, mean = corrected.get(system), float(found.at(budget).mean())
                yield SystemTest(
                    collection=label,
                    mode=mode,
                    system=system,
                    budget=budget,
                    mean=mean,
                    t_test=p,
                    better=p is not None and p < ALPHA and mean > float(found.at(budgets["smallest"]).mean()),
                )


def cells(data: AnalysisData) -> Iterator[CellTest]:
    """Yield every other cell against the fixed budget, per set and for all pooled, corrected for the whole grid."""
    for mode in data.modes:
        for label, names in groups(data):
            found = averaged(data, mode) if label == AVERAGE else data.outcomes[label, mode]
            others = [Budget(a, b) for a in found.query_budgets for b in found.passage_budgets]
            others.remove(data.fixed)
            fixed_N = _pooled(data, mode, names, data.fixed)
            differences_CN = np.stack([_pooled(data, mode, names, budget) - fixed_N for budget in others])
            t_tests, randomised = [t_test_p(d) for d in differences_CN], randomisation_p_each(differences_CN)
            corrected = zip(others, t_tests, holm(t_tests), randomised, holm(randomised), strict=True)
            for budget, t, t_holm, r, r_holm in corrected:
                mean = float(found.at(budget).mean())
                yield CellTest(
                    collection=label,
                    mode=mode,
                    budget=budget,
                    mean=mean,
                    difference=mean - float(found.at(data.fixed).mean()),
                    t_test=t,
                    t_test_holm=t_holm,
                    randomisation=r,
                    randomisation_holm=r_holm,
                )


def scoring(data: AnalysisData) -> Iterator[ScoringVariant]:
    """Yield what single, mean-pooled and MaxSim scoring reach; nothing where slots were not pooled."""
    if not data.has_pooled_slots:
        return
    variants: list[tuple[_Variant, SweepMode, Budget]] = [
        ("single", "dense", smallest(data)),
        ("pooled slots", "pooled-slots", data.fixed),
        ("MaxSim", "dense", data.fixed),
    ]
    for label, names in groups(data):
        before = None
        for variant, mode, budget in variants:
            samples = [data.outcomes[name, mode].at(budget) for name in names]
            pooled_N = np.concatenate(samples)
            yield ScoringVariant(
                collection=label,
                variant=variant,
                mean=float(np.mean([sample.mean() for sample in samples])),
                interval=bootstrap_average(samples),
                against_previous=None if before is None else t_test_p(pooled_N - before),
            )
            before = pooled_N


def _pooled(data: AnalysisData, mode: SweepMode, names: list[str], budget: Budget) -> np.ndarray:
    """Return the values of all queries of these sets: an average's test pools them, as the paper's does."""
    return np.concatenate([data.outcomes[name, mode].at(budget) for name in names])
