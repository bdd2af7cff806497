"""The fixed budget and the oracles against other systems' runs on the same queries, by paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self, TypeAlias

import numpy as np

from diffretriever.evaluation.formats.tables import NOTHING, Cell, Interval, between, markdown_table, points, signed
from diffretriever.evaluation.statistics import ALPHA, bootstrap_average, holm, t_test_p
from diffretriever.schemas.base import Model
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis import AnalysisData, AnalysisFacts, Section, mean_of_means
from diffretriever.studies.budgets.oracles import SIDES

_Side: TypeAlias = Literal["fixed", "query", "passage", "joint"]

_SIDES: tuple[_Side, ...] = ("fixed", *SIDES)


_SIDE_NAMES: dict[_Side, str] = {
    "fixed": "fixed budget",
    "query": "oracle K_q",
    "passage": "oracle K_p",
    "joint": "oracle of both",
}


class AgainstTest(Model):
    """The fixed budget, or an oracle over budgets, less another system, by the paired two-sided t-test over queries."""

    collection: str
    """As collection/split; `average` weighs every set alike, and its test pools the queries."""
    mode: SweepMode
    """Score of the budgets; the other system is one run, whatever made it."""
    system: str
    """Name of the other system."""
    system_mean: float
    side: _Side
    """The fixed budget, or what the oracle adapts."""
    mean: float
    difference: float
    """Mean less the other system's."""
    interval: Interval
    """Bootstrap 95% interval of the difference."""
    carried: float | None
    """Difference of what carries over of the oracle; None for the fixed budget, or without such evidence."""
    t_test: float
    """p of the difference."""
    t_test_holm: float
    """The same, corrected by Holm for the four sides."""


class AgainstSection(Section):
    """Budgets and oracles against other systems."""

    against: tuple[AgainstTest, ...]
    """By system and mode: each set, then all together where there are several. Empty without --against."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Test the fixed budget and each oracle against each other system."""
        tests = (
            test
            for system in data.systems
            for mode in data.modes
            for label, names in data.groups()
            for test in _tests(data, system, mode, label, names)
        )
        return cls(against=tuple(tests))

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield a table of the differences; it belongs to the section on oracles."""
        if not self.against:
            return
        yield "### Against other systems"
        yield (
            "The fixed budget and the oracles less another system's run, on the same queries. †: p < .05, paired "
            "two-sided t-test, corrected by Holm for the four rows of a system. An oracle sees the judgements and the "
            "other system does not, so that only the fixed budget's row compares systems; `carried over` is the "
            "difference that is left of an oracle without its luck. Dashed lines in the figures above show the same "
            "systems."
        )
        rows = [_row(test) for test in self.against]
        yield markdown_table(rows, ["mode", "queries", "system", "against it", "difference", "carried over"])


def _tests(data: AnalysisData, system: str, mode: SweepMode, label: str, names: Sequence[str]) -> Iterator[AgainstTest]:
    """Yield the four tests of one system, mode and group of sets."""
    theirs = [data.others[system, name] for name in names]
    ours = {side: [_values(data, mode, name, side) for name in names] for side in _SIDES}
    differences = {side: _less(ours[side], theirs) for side in _SIDES}
    p_values = [t_test_p(np.concatenate(differences[side])) for side in _SIDES]
    for side, p, corrected in zip(_SIDES, p_values, holm(p_values), strict=True):
        yield AgainstTest(
            collection=label,
            mode=mode,
            system=system,
            system_mean=mean_of_means(theirs),
            side=side,
            mean=mean_of_means(ours[side]),
            difference=mean_of_means(ours[side]) - mean_of_means(theirs),
            interval=bootstrap_average(differences[side]),
            carried=_carried(data, mode, names, side, theirs),
            t_test=p,
            t_test_holm=corrected,
        )


def _values(data: AnalysisData, mode: SweepMode, name: str, side: _Side) -> np.ndarray:
    return data.oracles[mode, name, "query"].fixed_Q if side == "fixed" else data.oracles[mode, name, side].best_Q


def _carried(
    data: AnalysisData, mode: SweepMode, names: Sequence[str], side: _Side, theirs: Sequence[np.ndarray]
) -> float | None:
    if side == "fixed":
        return None
    found = [data.oracles[mode, name, side].carried_Q for name in names]
    known = [values_Q for values_Q in found if values_Q is not None]
    return mean_of_means(_less(known, theirs)) if len(known) == len(names) else None


def _less(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [mine_Q - other_Q for mine_Q, other_Q in zip(ours, theirs, strict=True)]


def _row(test: AgainstTest) -> list[Cell]:
    dagger = "†" if test.t_test_holm < ALPHA else ""
    return [
        test.mode,
        test.collection,
        f"{test.system} {points(test.system_mean)}",
        f"{_SIDE_NAMES[test.side]} {points(test.mean)}",
        f"{signed(test.difference)}{dagger} {between(test.interval)}",
        NOTHING if test.carried is None else signed(test.carried),
    ]
