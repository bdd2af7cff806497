"""Paired tests between budgets and between ways of scoring.

Legend: C cells, N queries.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diffretriever.evaluation.budgets.data import AVERAGE, AnalysisData, _pooled, averaged, groups, smallest
from diffretriever.evaluation.budgets.scoring import _scoring_section
from diffretriever.evaluation.statistics import ALPHA, holm, randomisation_p_each, t_test_p
from diffretriever.evaluation.tables import Cell, markdown_table, points, signed
from schemas.analyse import AnalysisReport, CellTest, SystemTest
from schemas.budget import Budget


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


_DAGGER, _DOUBLE = "†", "‡"


_STRICT = 0.01


_MODE_ORDER = ("dense", "sparse", "hybrid")


def comparison_sections(report: AnalysisReport) -> Iterator[str]:
    """Yield the parts of the page on significance, and on scoring where slots were pooled."""
    yield "## Significance"
    yield (
        f"{_DAGGER}: better than the smallest budget, paired two-sided t-test over queries, p < .05, corrected by Holm "
        "for the two tests of a column. **Bold**: the best of a block. `best` is chosen on these very queries, so that "
        "its lead is partly luck. The average's tests pool the queries of all sets."
    )
    yield _systems_table(report)
    yield (
        f"Every budget less the fixed one, {report.modes[0]} {report.measure}; {_DAGGER} p < .05, {_DOUBLE} p < .01, "
        f"paired t-test corrected by Holm for the whole grid. {_agreement(report)} report.json has both tests for all "
        "modes."
    )
    for collection in dict.fromkeys(cell.collection for cell in report.cells):
        yield f"**{collection}**"
        yield _cells_table(report, collection)
    if report.scoring:
        yield from _scoring_section(report)


def _systems_table(report: AnalysisReport) -> str:
    modes = sorted(report.modes, key=_MODE_ORDER.index)
    blocks: dict[tuple[str, str], list[SystemTest]] = {}
    for test in report.systems:
        blocks.setdefault((test.collection, test.system), []).append(test)
    best = {
        (test.collection, test.mode): max(
            t.mean for t in report.systems if (t.collection, t.mode) == (test.collection, test.mode)
        )
        for test in report.systems
    }
    rows: list[list[Cell]] = []
    for (collection, system), tests in blocks.items():
        by_mode = {test.mode: test for test in tests}
        cells = [_system_cell(by_mode[mode], best[collection, mode]) for mode in modes]
        rows.append([collection, system, *cells])
    return markdown_table(rows, ["queries", "budget", *modes])


def _system_cell(test: SystemTest, best: float) -> str:
    figure = f"**{points(test.mean)}**" if test.mean == best else points(test.mean)
    return f"{test.budget} {figure}{_DAGGER if test.better else ''}"


def _cells_table(report: AnalysisReport, collection: str) -> str:
    tests = {
        cell.budget: cell for cell in report.cells if (cell.collection, cell.mode) == (collection, report.modes[0])
    }
    rows: list[list[Cell]] = [
        [f"K_q = {a}", *(_cell(tests.get(Budget(a, b))) for b in report.passage_budgets)] for a in report.query_budgets
    ]
    return markdown_table(rows, ["", *(f"K_p = {b}" for b in report.passage_budgets)])


def _cell(test: CellTest | None) -> str:
    if test is None:
        return "fixed"
    mark = _DOUBLE if test.t_test_holm < _STRICT else _DAGGER if test.t_test_holm < ALPHA else ""
    return f"{signed(test.difference)}{mark}"


def _agreement(report: AnalysisReport) -> str:
    """Say how often the randomisation test decides otherwise."""
    cells = [cell for cell in report.cells if cell.mode == report.modes[0]]
    differ = sum((cell.t_test_holm < ALPHA) != (cell.randomisation_holm < ALPHA) for cell in cells)
    if not differ:
        return f"The paired randomisation test, corrected alike, decides the same in all {len(cells)} cells."
    return f"The paired randomisation test, corrected alike, decides otherwise in {differ} of {len(cells)} cells."
