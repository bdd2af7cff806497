"""Paired tests between budgets: the paper's table of systems, and every budget against the fixed one.

Legend: C cells, N queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np

from diffretriever.evaluation.formats.tables import Cell, markdown_table, points, signed
from diffretriever.evaluation.statistics import ALPHA, holm, randomisation_p_each, t_test_p
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis import MODES, AnalysisData, AnalysisFacts, Section

_DAGGER, _DOUBLE = "†", "‡"
_STRICT = 0.01
"""Level of the double dagger."""


class SystemTest(Model):
    """A budget against the smallest one, as the paper's tables have it."""

    collection: str
    mode: SweepMode
    system: Literal["smallest", "fixed", "best"]
    """`best` is the best cell of these very queries."""
    budget: Budget
    mean: float
    t_test: float | None
    """p of the paired t-test against `smallest`, corrected by Holm for the two of a column; None for itself."""
    better: bool
    """Better than `smallest` with p below .05."""


class CellTest(Model):
    """One budget against the fixed one, by paired two-sided tests over queries."""

    collection: str
    """As collection/split; `average` pools the queries."""
    mode: SweepMode
    budget: Budget
    mean: float
    difference: float
    """Mean less the fixed budget's."""
    t_test: float
    """p of the paired t-test."""
    t_test_holm: float
    """The same, corrected by Holm for all cells of this collection and mode."""
    randomisation: float
    """p of the paired randomisation test."""
    randomisation_holm: float
    """The same, corrected likewise."""


class SignificanceSection(Section):
    """Significance."""

    systems: tuple[SystemTest, ...]
    """The smallest, the fixed and the best budget of each mode and set, then of all sets where there are several."""
    cells: tuple[CellTest, ...]
    """Every other budget against the fixed one, likewise."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Test budgets on each set, and on the queries of all sets pooled."""
        groups = [(mode, label, names) for mode in data.modes for label, names in data.groups()]
        return cls(
            systems=tuple(test for group in groups for test in _system_tests(data, *group)),
            cells=tuple(test for group in groups for test in _cell_tests(data, *group)),
        )

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield the table of systems, and for the main mode a table of all budgets for each set."""
        main = facts.modes[0]
        cells = [cell for cell in self.cells if cell.mode == main]
        yield "## Significance"
        yield (
            f"{_DAGGER}: better than the smallest budget, paired two-sided t-test over queries, p < .05, corrected by "
            "Holm for the two tests of a column. **Bold**: the best of a block. `best` is chosen on these very "
            "queries, so that its lead is partly luck. The average's tests pool the queries of all sets."
        )
        yield _system_table(self.systems, sorted(facts.modes, key=MODES.index))
        yield (
            f"Every budget less the fixed one, {main} {facts.measure}; {_DAGGER} p < .05, {_DOUBLE} p < .01, "
            f"paired t-test corrected by Holm for the whole grid. {_agreement(cells)} report.json has both tests for "
            "all modes."
        )
        for collection in dict.fromkeys(cell.collection for cell in cells):
            yield f"**{collection}**"
            yield _cell_table({cell.budget: cell for cell in cells if cell.collection == collection}, facts)


def _system_tests(data: AnalysisData, mode: SweepMode, label: str, names: Sequence[str]) -> Iterator[SystemTest]:
    found = data.of_group(label, mode)
    budgets: dict[Literal["smallest", "fixed", "best"], Budget] = {
        "smallest": data.smallest,
        "fixed": data.fixed,
        "best": found.best(),
    }
    smallest_N = data.pooled(mode, names, data.smallest)
    tested = [system for system, budget in budgets.items() if budget != data.smallest]
    p_values = [t_test_p(data.pooled(mode, names, budgets[system]) - smallest_N) for system in tested]
    corrected = dict(zip(tested, holm(p_values), strict=True))
    for system, budget in budgets.items():
        p, mean = corrected.get(system), float(found.at(budget).mean())
        yield SystemTest(
            collection=label,
            mode=mode,
            system=system,
            budget=budget,
            mean=mean,
            t_test=p,
            better=p is not None and p < ALPHA and mean > float(found.at(data.smallest).mean()),
        )


def _cell_tests(data: AnalysisData, mode: SweepMode, label: str, names: Sequence[str]) -> Iterator[CellTest]:
    found = data.of_group(label, mode)
    others = [budget for budget in found.budgets if budget != data.fixed]
    if not others:
        return
    fixed_N = data.pooled(mode, names, data.fixed)
    differences_CN = np.stack([data.pooled(mode, names, budget) - fixed_N for budget in others])
    t_tests, randomised = [t_test_p(d_N) for d_N in differences_CN], randomisation_p_each(differences_CN)
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


def _system_table(systems: Sequence[SystemTest], modes: Sequence[SweepMode]) -> str:
    best: dict[tuple[str, SweepMode], float] = {}
    by_row: dict[tuple[str, str], dict[SweepMode, SystemTest]] = {}
    for test in systems:
        best[test.collection, test.mode] = max(test.mean, best.get((test.collection, test.mode), test.mean))
        by_row.setdefault((test.collection, test.system), {})[test.mode] = test
    rows: list[list[Cell]] = [
        [collection, system, *(_system_cell(tests[mode], best[collection, mode]) for mode in modes)]
        for (collection, system), tests in by_row.items()
    ]
    return markdown_table(rows, ["queries", "budget", *modes])


def _system_cell(test: SystemTest, best: float) -> str:
    figure = f"**{points(test.mean)}**" if test.mean == best else points(test.mean)
    return f"{test.budget} {figure}{_DAGGER if test.better else ''}"


def _cell_table(tests: dict[Budget, CellTest], facts: AnalysisFacts) -> str:
    rows: list[list[Cell]] = [
        [f"K_q = {k_q}", *(_cell(tests.get(Budget(k_q, k_p))) for k_p in facts.passage_budgets)]
        for k_q in facts.query_budgets
    ]
    return markdown_table(rows, ["", *(f"K_p = {k_p}" for k_p in facts.passage_budgets)])


def _cell(test: CellTest | None) -> str:
    if test is None:
        return "fixed"
    mark = _DOUBLE if test.t_test_holm < _STRICT else _DAGGER if test.t_test_holm < ALPHA else ""
    return f"{signed(test.difference)}{mark}"


def _agreement(cells: Sequence[CellTest]) -> str:
    differ = sum((cell.t_test_holm < ALPHA) != (cell.randomisation_holm < ALPHA) for cell in cells)
    if not differ:
        return f"The paired randomisation test, corrected alike, decides the same in all {len(cells)} cells."
    return f"The paired randomisation test, corrected alike, decides otherwise in {differ} of {len(cells)} cells."
