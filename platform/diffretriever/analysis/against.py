"""The fixed budget and the oracles against other systems, by paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.analysis.comparisons import groups
from diffretriever.analysis.data import AnalysisData
from diffretriever.budgets.oracles import SIDES, Oracle, Side
from diffretriever.statistics.intervals import bootstrap_average
from diffretriever.statistics.significance import holm, t_test_p
from schemas.against import AgainstTest
from schemas.sweep import SweepMode

_Compared: TypeAlias = Literal["fixed", "query", "passage", "joint"]
_COMPARED: tuple[_Compared, ...] = ("fixed", *SIDES)


def against_tests(data: AnalysisData, oracles: Mapping[tuple[SweepMode, str, Side], Oracle]) -> Iterator[AgainstTest]:
    """Yield the fixed budget and each oracle less each other system, per set and for all sets together."""
    for system in dict.fromkeys(system for system, _ in data.others):
        for mode in data.modes:
            for label, names in groups(data):
                theirs = [data.others[system, name] for name in names]
                ours = {what: [_values(oracles, mode, name, what) for name in names] for what in _COMPARED}
                p_values = [t_test_p(np.concatenate(_less(ours[what], theirs))) for what in _COMPARED]
                for what, p, corrected in zip(_COMPARED, p_values, holm(p_values), strict=True):
                    carried = [_carried(oracles, mode, name, what) for name in names]
                    known = [values for values in carried if values is not None]
                    yield AgainstTest(
                        collection=label,
                        mode=mode,
                        system=system,
                        system_mean=_average(theirs),
                        side=what,
                        mean=_average(ours[what]),
                        difference=_average(ours[what]) - _average(theirs),
                        interval=bootstrap_average(_less(ours[what], theirs)),
                        carried=_average(_less(known, theirs)) if len(known) == len(names) else None,
                        t_test=p,
                        t_test_holm=corrected,
                    )


def _values(
    oracles: Mapping[tuple[SweepMode, str, Side], Oracle], mode: SweepMode, name: str, what: _Compared
) -> np.ndarray:
    return oracles[mode, name, SIDES[0]].fixed_Q if what == "fixed" else oracles[mode, name, what].best_Q


def _carried(
    oracles: Mapping[tuple[SweepMode, str, Side], Oracle], mode: SweepMode, name: str, what: _Compared
) -> np.ndarray | None:
    return None if what == "fixed" else oracles[mode, name, what].carried_Q


def _less(ours: list[np.ndarray], theirs: list[np.ndarray]) -> list[np.ndarray]:
    return [mine - other for mine, other in zip(ours, theirs, strict=True)]


def _average(samples: list[np.ndarray]) -> float:
    return float(np.mean([sample.mean() for sample in samples]))
