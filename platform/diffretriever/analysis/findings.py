"""The numbers of an analysis: grids, oracles, correlations, tests, scoring variants.

Legend: A query budgets, B passage budgets, Q queries, N pooled queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from diffretriever.analysis.data import AnalysisData
from diffretriever.budgets.oracles import SIDES, Oracle, Side, best_query_budgets, decided, oracle
from diffretriever.budgets.outcomes import Outcomes
from diffretriever.statistics.correlation import Correlation, kendall, spearman
from diffretriever.statistics.intervals import bootstrap_average
from schemas.analyse import Coefficient, FeatureCorrelation, GridMeans, OracleGain
from schemas.sweep import SweepMode

AVERAGE = "average"
POOLED = "pooled"
SELECTION = "selection"


def grids(data: AnalysisData) -> Iterator[GridMeans]:
    """Yield the grid of each mode on each set, then its average where there are several sets."""
    if data.selection is not None:
        yield _grid(SELECTION, data.modes[0], data.selection)
    for mode in data.modes:
        for name in data.names:
            yield _grid(name, mode, data.outcomes[name, mode])
        if len(data.names) > 1:
            yield _grid(AVERAGE, mode, averaged(data, mode))


def averaged(data: AnalysisData, mode: SweepMode) -> Outcomes:
    """Return outcomes with a made-up query for each set, which has the set's means: their mean is the average."""
    sets = [data.outcomes[name, mode] for name in data.names]
    means_ABQ = np.stack([found.values_ABQ.mean(axis=2) for found in sets], axis=2)
    return Outcomes(tuple(data.names), sets[0].query_budgets, sets[0].passage_budgets, means_ABQ)


def _grid(name: str, mode: SweepMode, outcomes: Outcomes) -> GridMeans:
    means_AB = outcomes.values_ABQ.mean(axis=2)
    return GridMeans(
        collection=name,
        mode=mode,
        means=tuple(map(tuple, means_AB.tolist())),
        best=outcomes.best(),
        spread=float(np.ptp(means_AB)),
    )


def all_oracles(data: AnalysisData) -> dict[tuple[SweepMode, str, Side], Oracle]:
    """Return every oracle against the fixed budget, by mode, set and side."""
    return {
        (mode, name, side): oracle(data.outcomes[name, mode], data.fixed, side)
        for mode in data.modes
        for name in data.names
        for side in SIDES
    }


def oracle_gains(data: AnalysisData, oracles: Mapping[tuple[SweepMode, str, Side], Oracle]) -> Iterator[OracleGain]:
    """Yield what each oracle gains, per set and then as the average of all sets."""
    groups = [(name, [name]) for name in data.names]
    if len(data.names) > 1:
        groups.append((AVERAGE, data.names))
    for mode in data.modes:
        for label, names in groups:
            for side in SIDES:
                yield _gain(label, mode, side, [oracles[mode, name, side] for name in names])


def _gain(label: str, mode: SweepMode, side: Side, found: list[Oracle]) -> OracleGain:
    headrooms = [o.headroom for o in found]
    carried = [o.carried_gain for o in found if o.carried_gain is not None]
    luck = [o.luck for o in found if o.luck is not None]
    return OracleGain(
        collection=label,
        mode=mode,
        side=side,
        fixed=_average([o.fixed_Q for o in found]),
        headroom=_average(headrooms),
        headroom_interval=bootstrap_average(headrooms),
        dataset=_average([o.dataset_Q - o.fixed_Q for o in found]),
        carried=_average(carried) if carried else None,
        carried_interval=bootstrap_average(carried) if carried else None,
        luck=_average(luck) if luck else None,
        luck_interval=bootstrap_average(luck) if luck else None,
    )


def _average(samples: list[np.ndarray]) -> float:
    return float(np.mean([sample.mean() for sample in samples]))


def correlations(data: AnalysisData) -> Iterator[FeatureCorrelation]:
    """Yield how each feature goes with the oracle's K_q, for all queries pooled and for each set.

    Once for all queries, as the paper has it, and once for those for which K_q makes a difference: of equal budgets the
    oracle takes the smallest, so that queries which all budgets serve alike count as wanting few slots.
    """
    groups = [(name, [name]) for name in data.names]
    if len(data.names) > 1:
        groups.insert(0, (POOLED, data.names))
    else:
        groups[0] = (POOLED, data.names)
    k_p = data.fixed.passage
    for mode in data.modes:
        for label, names in groups:
            best_N = np.concatenate([best_query_budgets(data.outcomes[name, mode], k_p) for name in names])
            decided_N = np.concatenate([decided(data.outcomes[name, mode], k_p) for name in names])
            for column, feature in enumerate(data.feature_names):
                values_N = np.concatenate([data.features[name][:, column] for name in names])
                yield _correlation(label, mode, feature, values_N, best_N, decided_only=False)
                if decided_N.any():
                    chosen = values_N[decided_N], best_N[decided_N]
                    yield _correlation(label, mode, feature, *chosen, decided_only=True)


def _correlation(
    label: str, mode: SweepMode, feature: str, values_N: np.ndarray, best_N: np.ndarray, *, decided_only: bool
) -> FeatureCorrelation:
    return FeatureCorrelation(
        collection=label,
        mode=mode,
        feature=feature,
        queries="decided" if decided_only else "all",
        n=len(values_N),
        spearman=_coefficient(spearman(values_N, best_N)),
        kendall=_coefficient(kendall(values_N, best_N)),
    )


def _coefficient(found: Correlation) -> Coefficient:
    value, low, high = (None if math.isnan(x) else x for x in (found.value, found.low, found.high))
    return Coefficient(value=value, low=low, high=high)
