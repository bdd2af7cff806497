"""The page of an analysis, in Markdown, in the order of a paper's analysis section."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from diffretriever.analysis.against_page import against_section
from diffretriever.analysis.comparison_page import comparison_sections
from diffretriever.analysis.findings import AVERAGE, POOLED, SELECTION
from diffretriever.analysis.numbers import between, points, share, signed, with_interval
from diffretriever.analysis.slots_page import slots_section
from diffretriever.budgets.features import FEATURES
from diffretriever.evaluation.tables import Cell, format_table, markdown_table
from schemas.analyse import AnalysisReport, Coefficient, OracleGain

_ORACLE_COLUMNS = [
    "mode", "queries", "adapts", "fixed", "oracle", "gain", "carries over", "data set", "luck", "luck share",
]  # fmt: skip
_SIDES = {"query": "K_q", "passage": "K_p", "joint": "both"}


def analysis_page(report: AnalysisReport) -> str:
    """Return the whole page."""
    parts = [
        "# Representation budgets, analysed",
        _introduction(report),
        *_grid_section(report),
        *_oracle_section(report),
        *against_section(report),
        *_feature_section(report),
        *comparison_sections(report),
        *slots_section(report),
        "## Command",
        f"```\n{report.command}\n```",
        "<details><summary>Resolved config</summary>",
        f"```yaml\n{yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True)}```",
        "</details>",
    ]
    return "\n\n".join(parts) + "\n"


def oracle_table(report: AnalysisReport) -> str:
    """Return what the main mode's oracles gain as plain text, for the terminal."""
    rows = [_oracle_row(gain)[1:] for gain in report.oracles if gain.mode == report.modes[0]]
    return format_table(rows, _ORACLE_COLUMNS[1:])


def _introduction(report: AnalysisReport) -> str:
    rows: list[list[Cell]] = [
        ["retriever", report.retriever],
        ["encoder fingerprint", report.fingerprint],
        ["queries", ", ".join(f"{name} {n:,}" for name, n in report.queries.items())],
        ["budgets", f"K_q in {_listed(report.query_budgets)}; K_p in {_listed(report.passage_budgets)}"],
        ["fixed budget", f"{report.fixed}, {report.chosen}"],
        ["measure", report.measure],
    ]
    return markdown_table(rows, ["what", "value"])


def _grid_section(report: AnalysisReport) -> Iterator[str]:
    yield "## The impact of the number of slots"
    yield (
        f"{report.measure} of every budget. A star marks the best cell of a panel, a frame the fixed budget "
        f"{report.fixed}; Δ is the highest mean less the lowest."
        + (f" The panel `{SELECTION}` shows the queries that chose it." if _has(report, SELECTION) else "")
        + (f" `{AVERAGE}` weighs every set alike." if _has(report, AVERAGE) else "")
    )
    for mode in report.modes:
        yield f"![{mode} {report.measure} by budget](grid-{mode}.png)"
    a, b = report.query_budgets.index(report.fixed.query), report.passage_budgets.index(report.fixed.passage)
    rows: list[list[Cell]] = [
        [
            grid.mode,
            grid.collection,
            points(grid.means[a][b]),
            str(grid.best),
            points(max(map(max, grid.means))),
            signed(grid.means[a][b] - max(map(max, grid.means))),
            points(grid.spread),
        ]
        for grid in report.grids
    ]
    yield markdown_table(rows, ["mode", "queries", str(report.fixed), "best cell", "its mean", "fixed less best", "Δ"])


def _oracle_section(report: AnalysisReport) -> Iterator[str]:
    yield "## Per-query oracles, and how much of them is luck"
    yield (
        f"An oracle chooses each query's budget by its relevance judgements: K_q at K_p = {report.fixed.passage}, "
        f"K_p at K_q = {report.fixed.query}, or both. It is an upper bound and no system. It also gains "
        "where budgets differ by nothing but chance, because it takes a maximum. The control beside it chooses by the "
        "same query's results at the *other* budgets of the other side, and is credited with the one it did not see; "
        "how far to trust them is fitted on other queries, and unless that surely gains, it stays at the fixed budget. "
        "What the control gains **carries over**; the rest of the "
        "oracle's gain is **luck**. `data set` is the part of what carries over that another fixed budget would gain "
        "too. Runs of one query share its vectors, so some luck may still carry over, and evidence from few budgets is "
        "noisy, so some preference may be missed."
    )
    for mode in report.modes:
        yield _oracle_summary(report, [g for g in report.oracles if g.mode == mode])
        yield f"![{mode}: what oracles gain](oracles-{mode}.png)"
    rows = [_oracle_row(gain) for gain in report.oracles]
    yield markdown_table(rows, _ORACLE_COLUMNS)


def _oracle_summary(report: AnalysisReport, gains: list[OracleGain]) -> str:
    """Say in words what the last group holds: the average where there is one."""
    last = [gain for gain in gains if gain.collection == gains[-1].collection]
    where = "on average over the sets" if last[0].collection == AVERAGE else f"on {last[0].collection}"
    said = [
        f"{_SIDES[g.side]} {signed(g.headroom)}"
        + ("" if g.carried is None else f", of which {signed(g.carried)} carries over")
        for g in last
    ]
    fixed = f"Over {points(last[0].fixed)} {report.measure} of the fixed budget"
    return f"**{last[0].mode}.** {fixed}, {where}, the oracles gain: {'; '.join(said)}."


def _oracle_row(gain: OracleGain) -> list[Cell]:
    return [
        gain.mode,
        gain.collection,
        _SIDES[gain.side],
        points(gain.fixed),
        points(gain.fixed + gain.headroom),
        with_interval(gain.headroom, gain.headroom_interval),
        with_interval(gain.carried, gain.carried_interval),
        signed(gain.dataset),
        with_interval(gain.luck, gain.luck_interval),
        share(gain.luck / gain.headroom if gain.luck is not None and gain.headroom > 0 else None),
    ]


def _feature_section(report: AnalysisReport) -> Iterator[str]:
    yield "## Which queries want more slots"
    yield (
        f"The K_q that is best for a query at K_p = {report.fixed.passage}, of equal ones the smallest, against what "
        "is known of the query for little. Rank correlations over all queries pooled, with bootstrap 95% intervals. A "
        "selector may look at all but `slot confidence`, which takes a pass of the encoder with one slot."
    )
    yield "![Best query budget by feature](features.png)"
    yield (
        "`decided` leaves out the queries for which K_q makes no difference: they count as wanting the fewest slots, "
        "which alone makes a correlation where easy or hopeless queries are short or long. Pooled figures also mix "
        "differences between sets with those between their queries; report.json has each set by itself."
    )
    rows: list[list[Cell]] = [
        [
            c.mode,
            FEATURES[c.feature].title,
            c.queries,
            c.n,
            _coefficient(c.spearman),
            _coefficient(c.kendall),
        ]
        for c in report.correlations
        if c.collection == POOLED
    ]
    yield markdown_table(rows, ["mode", "feature", "queries", "n", "Spearman ρ", "Kendall τ"])  # noqa: RUF001


def _coefficient(found: Coefficient) -> str:
    if found.value is None or found.low is None or found.high is None:
        return "undefined"
    return f"{signed(found.value)} {between((found.low, found.high))}"


def _has(report: AnalysisReport, collection: str) -> bool:
    return any(grid.collection == collection for grid in report.grids)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
