"""The part of the page that compares budgets and ways of scoring by paired tests."""

from __future__ import annotations

from collections.abc import Iterator

from diffretriever.analysis.numbers import NOTHING, level_with_interval, p_value, points, signed
from diffretriever.evaluation.tables import Cell, markdown_table
from diffretriever.statistics.significance import ALPHA
from schemas.analyse import AnalysisReport, CellTest, SystemTest
from schemas.budget import Budget

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


def _scoring_section(report: AnalysisReport) -> Iterator[str]:
    yield "## Where the gains come from"
    yield (
        f"Dense scoring of a single representation, of the mean of several at {report.fixed}, and of the same several "
        "by MaxSim. p: paired t-test against the line above."
    )
    yield "![Dense scoring variants](scoring.png)"
    rows: list[list[Cell]] = [
        [
            variant.collection,
            variant.variant,
            level_with_interval(variant.mean, variant.interval),
            NOTHING if variant.against_previous is None else p_value(variant.against_previous),
        ]
        for variant in report.scoring
    ]
    yield markdown_table(rows, ["queries", "scoring", report.measure, "p"])
