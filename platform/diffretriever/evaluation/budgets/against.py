"""The fixed budget and the oracles against other systems, by paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.evaluation.budgets.data import AnalysisData, groups
from diffretriever.evaluation.budgets.oracles import SIDES, Oracle, Side
from diffretriever.evaluation.statistics import ALPHA, bootstrap_average, holm, t_test_p
from diffretriever.evaluation.tables import NOTHING, Cell, between, markdown_table, points, signed
from schemas.analyse import AgainstTest, AnalysisReport
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


_SIDES = {"fixed": "fixed budget", "query": "oracle K_q", "passage": "oracle K_p", "joint": "oracle of both"}


def against_section(report: AnalysisReport) -> Iterator[str]:
    """Yield the parts of the section; nothing where no other system was given."""
    if not report.against:
        return
    yield "### Against other systems"
    yield (
        "The fixed budget and the oracles less another system's run, on the same queries. †: p < .05, paired two-sided "
        "t-test, corrected by Holm for the four rows of a system. An oracle sees the judgements and the other system "
        "does not, so that only the fixed budget's row compares systems; `carried over` is the difference that is left "
        "of an oracle without its luck. Dashed lines in the figures above show the same systems."
    )
    rows: list[list[Cell]] = [
        [
            test.mode,
            test.collection,
            f"{test.system} {points(test.system_mean)}",
            f"{_SIDES[test.side]} {points(test.mean)}",
            _difference(test),
            NOTHING if test.carried is None else signed(test.carried),
        ]
        for test in report.against
    ]
    yield markdown_table(rows, ["mode", "queries", "system", "against it", "difference", "carried over"])


def _difference(test: AgainstTest) -> str:
    dagger = "†" if test.t_test_holm < ALPHA else ""
    return f"{signed(test.difference)}{dagger} {between(test.interval)}"
