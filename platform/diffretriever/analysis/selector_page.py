"""The page of a fitted selector, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diffretriever.analysis.numbers import NOTHING, p_value, points, share, signed, with_interval
from diffretriever.evaluation.tables import Cell, format_table, markdown_table
from diffretriever.statistics.significance import ALPHA
from schemas.selector import AdaptiveRow, FittedSelectorReport, LearnedSelectorArtefact

_COLUMNS = ["tested on", "selector", "fitted on", "mean", "mean K_q", "fixed", "its K_q", "gain", "p (t)", "p (r)"]
_SHARES = ["oracle gains", "carries over", "recovered", "of what carries over"]
_READING = (
    "`fixed` is the fixed budget that is best on what the selector was fitted on, for the rule on other folds; p from "
    "paired two-sided tests over queries, t and randomisation. `folds`: every query is chosen for by a selector fitted "
    "on other queries of the set. `oracle gains` is what the K_q oracle gains over `fixed`, `carries over` what of "
    "it is no luck; `recovered` is the selector's gain as a share of either, `of what carries over` being meaningless "
    "where that is nearly nothing. `against equal K_q`: against the fixed budget that is best among those of no more "
    "slots than the selector takes."
)
_FRUGAL = ["against equal K_q", "p (t)"]


def selector_page(report: FittedSelectorReport, artefact: LearnedSelectorArtefact, fixed: Mapping[int, float]) -> str:
    """Return the whole page; nothing in it depends on when it is made."""
    parts = [
        "# A selector of query budgets",
        _facts(report, artefact),
        _verdict(report.rows),
        "## Against fixed budgets",
        _READING,
        markdown_table([_row(row) for row in report.rows], [*_COLUMNS, *_SHARES, *_FRUGAL]),
        "## What slots cost",
        "All queries together by cross-validation, with λ taken off each budget's predicted value per slot.",
        "![Measure against mean K_q](curve.png)",
        markdown_table([_row(row) for row in report.curve], [*_COLUMNS, *_SHARES, *_FRUGAL]),
        "Fixed budgets on the same queries: " + ", ".join(f"K_q = {k} {points(v)}" for k, v in fixed.items()) + ".",
        "## Command",
        f"```\n{report.command}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def selector_table(report: FittedSelectorReport) -> str:
    """Return the cross-validated rows as plain text, for the terminal."""
    return format_table([_row(row)[: len(_COLUMNS)] for row in report.rows], _COLUMNS)


def _facts(report: FittedSelectorReport, artefact: LearnedSelectorArtefact) -> str:
    found = "none: it chooses the best fixed budget" if artefact.penalty is None else f"ridge {artefact.penalty:g}"
    rows: list[list[Cell]] = [
        ["retriever", report.retriever],
        ["encoder fingerprint", report.fingerprint],
        ["fitted on", ", ".join(artefact.collections)],
        ["queries", f"{artefact.queries:,}"],
        ["predicts", f"{report.mode} {report.measure} at K_p = {report.passage_budget}"],
        ["features", ", ".join(feature.name for feature in artefact.features)],
        ["K_q", ", ".join(map(str, artefact.budgets))],
        ["λ", f"{artefact.cost:g}"],
        ["signal", found],
    ]
    return markdown_table(rows, ["what", "value"])


def _verdict(rows: Sequence[AdaptiveRow]) -> str:
    """Say in words whether the learned selector ever lost."""
    learned = [row for row in rows if row.selector.startswith("learned")]
    worse = [row for row in learned if row.gain < 0 and min(row.t_test, row.randomisation) < ALPHA]
    better = [row for row in learned if row.gain > 0 and max(row.t_test, row.randomisation) < ALPHA]
    return (
        f"Of {len(learned)} evaluations of the learned selector, {len(better)} are significantly better than the best "
        f"fixed budget and {len(worse)} significantly worse (p < .05, uncorrected)."
    )


def _row(row: AdaptiveRow) -> list[Cell]:
    return [
        row.tested_on,
        row.selector,
        row.fitted_on,
        points(row.mean),
        f"{row.mean_budget:.2f}",
        points(row.fixed),
        f"{row.fixed_budget:.2f}",
        with_interval(row.gain, row.interval),
        p_value(row.t_test),
        p_value(row.randomisation),
        signed(row.headroom),
        NOTHING if row.carried is None else signed(row.carried),
        share(row.recovered),
        share(row.recovered_carried),
        signed(row.frugal_gain),
        p_value(row.frugal_t_test),
    ]
