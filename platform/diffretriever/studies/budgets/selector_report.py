"""A selector fitted on sweeps, `fitted_selector.json`, and the report of its gains on queries outside the fit.

Legend: A query budgets, F features, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diffretriever.budgets.selectors import RuleSelector, Selector, fit, folds
from diffretriever.core.files import write_bytes, write_text
from diffretriever.core.progress import track
from diffretriever.evaluation.figures import BLUE, GREY, HEAD_INCHES, ORANGE, headed_figure, label_curve, png, quiet
from diffretriever.evaluation.formats.tables import (
    NOTHING,
    Cell,
    Interval,
    command_blocks,
    format_table,
    listed,
    markdown_table,
    p_value,
    points,
    share,
    signed,
    with_interval,
)
from diffretriever.evaluation.statistics import ALPHA, bootstrap_interval, randomisation_p_each, t_test_p
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.selector import FitSelectorJob, LearnedSelectorArtefact
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.fit_selector import QuerySet, fit_selector, joined, query_sets
from diffretriever.studies.budgets.oracles import oracle
from diffretriever.studies.budgets.sweep_files import open_splits

FITTED_SELECTOR_FILE = "fitted_selector.json"

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
_CURVE = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01)
"""Costs λ at which the report traces the measure against mean K_q."""


class AdaptiveRow(Model):
    """How one selector did on one set of queries that it was not fitted on."""

    selector: str
    """Its name; for a learned one with its λ."""
    cost: float
    """λ; 0 for one that was not learned."""
    fitted_on: str
    """`folds` of the same queries, the name of another set, or `nothing`."""
    tested_on: str
    """As collection/split."""
    queries: int
    mean: float
    """Mean measure."""
    mean_budget: float
    """Mean K_q."""
    budgets: dict[int, float]
    """K_q → share of the queries for which it was chosen."""
    fixed: float
    """Mean measure of the best fixed budget on the selector's training queries."""
    fixed_budget: float
    """Mean K_q of that; folds may differ."""
    gain: float
    """Mean less fixed."""
    interval: Interval
    """Bootstrap 95% interval of the gain."""
    t_test: float
    """p of the two-sided paired t-test against fixed."""
    randomisation: float
    """p of the two-sided paired randomisation test against fixed."""
    frugal: float
    """Mean measure of the fixed budget that is best among those of no more slots than mean_budget."""
    frugal_gain: float
    """Mean less frugal."""
    frugal_t_test: float
    """p of the two-sided paired t-test against frugal."""
    headroom: float
    """What the K_q oracle gains over fixed."""
    carried: float | None
    """What of that carries over to other passage budgets, the rest being luck; None where it cannot be told."""
    recovered: float | None
    """Gain as a share of the headroom; None where there is none."""
    recovered_carried: float | None
    """Gain as a share of what carries over; None where nothing does."""


class FittedSelectorReport(Model):
    """The file `report.json` of jobs/fit_selector.py."""

    retriever: str
    fingerprint: str
    mode: SweepMode
    measure: str
    passage_budget: int
    rows: tuple[AdaptiveRow, ...]
    """Cross-validated, and each fitted selector on every other set, at the λ of the artefact."""
    curve: tuple[AdaptiveRow, ...]
    """Cross-validated on all queries together, by λ."""
    command: str
    """The command line."""


def report_selector(job: FitSelectorJob, command: str) -> FittedSelectorReport:
    """Fit on all queries of all sweeps, evaluate across folds and sets, and write the job's output folder."""
    splits = open_splits(job.sweeps)
    sets = query_sets(job, splits)
    everything = joined(sets) if len(sets) > 1 else sets[0]
    artefact = fit_selector(job, splits, everything, command)
    rule = _rule(everything)
    manifest = splits[0].manifest
    report = FittedSelectorReport(
        retriever=manifest.retriever,
        fingerprint=manifest.fingerprint,
        mode=job.mode,
        measure=job.measure,
        passage_budget=everything.passage_budget,
        rows=tuple(_rows(sets, everything, job.cost)),
        curve=tuple(across_folds(everything, cost) for cost in track(_CURVE, "curve", "costs")),
        command=command,
    )
    budgets = everything.outcomes.query_budgets
    fixed = dict(zip(budgets, everything.values_AQ.mean(axis=1).tolist(), strict=True))
    write_bytes(job.output / "curve.png", draw_curve(report, fixed, rule))
    write_text(job.output / "report.json", report.model_dump_json(indent=2) + "\n")
    write_text(job.output / "report.md", selector_page(report, artefact, fixed))
    write_text(job.output / "fit_selector.yaml", job.to_yaml())
    write_text(job.output / FITTED_SELECTOR_FILE, artefact.model_dump_json(indent=2) + "\n")
    return report


def selector_table(report: FittedSelectorReport) -> str:
    """Return the cross-validated rows as plain text, for the terminal."""
    return format_table([_cells(row)[: len(_COLUMNS)] for row in report.rows], _COLUMNS)


def _rows(sets: list[QuerySet], everything: QuerySet, cost: float) -> list[AdaptiveRow]:
    tested = [*sets, everything] if len(sets) > 1 else sets
    rules = [rule for queries in tested if (rule := _rule(queries)) is not None]
    folded = [across_folds(queries, cost) for queries in tested]
    crossed = [across_sets(source, target, cost) for source in sets for target in sets if source is not target]
    return [*rules, *folded, *crossed]


def _rule(queries: QuerySet) -> AdaptiveRow | None:
    selector = RuleSelector(queries.outcomes.query_budgets)
    return as_given(selector, queries) if set(selector.features) <= set(queries.names) else None


def across_folds(queries: QuerySet, cost: float) -> AdaptiveRow:
    """Evaluate a learned selector by five-fold cross-validation: each query is chosen for by a fit on other folds."""
    values_AQ, budgets = queries.values_AQ, queries.outcomes.query_budgets
    chosen_Q = np.empty(values_AQ.shape[1], np.int64)
    for training, test in folds(len(chosen_Q)):
        model = fit(queries.features_QF[training], values_AQ[:, training], budgets, cost)
        chosen_Q[test] = model.choose(queries.features_QF[test])
    return _row((f"learned λ={cost:g}", cost, "folds"), chosen_Q, queries, None)


def across_sets(source: QuerySet, target: QuerySet, cost: float) -> AdaptiveRow:
    """Evaluate on `target` a selector learned on all of `source`, against the fixed budget best on `source`."""
    model = fit(source.features_QF, source.values_AQ, source.outcomes.query_budgets, cost)
    chosen_Q = model.choose(target.features_QF)
    return _row((f"learned λ={cost:g}", cost, source.name), chosen_Q, target, source)


def as_given(selector: Selector, queries: QuerySet) -> AdaptiveRow:
    """Evaluate a selector without a fit, such as the default rule; raise `ValueError` for an unswept budget."""
    budgets = queries.outcomes.query_budgets
    chosen = [selector.choose(dict(zip(queries.names, row, strict=True))) for row in queries.features_QF.tolist()]
    unknown = sorted(set(chosen) - set(budgets))
    if unknown:
        raise ValueError(f"{selector.name} chose K_q = {unknown[0]}, which was not swept: {listed(budgets)}")
    return _row((selector.name, 0.0, "nothing"), np.searchsorted(budgets, chosen), queries, None)


def _row(
    label: tuple[str, float, str], chosen_Q: np.ndarray, queries: QuerySet, source: QuerySet | None
) -> AdaptiveRow:
    selector, cost, fitted_on = label
    budgets_A = np.array(queries.outcomes.query_budgets)
    values_AQ, everyone = queries.values_AQ, np.arange(len(chosen_Q))
    mean_budget = float(budgets_A[chosen_Q].mean())
    fixed_Q = _best_fixed(queries, source, len(budgets_A))
    frugal_Q = _best_fixed(queries, source, int((budgets_A <= mean_budget).sum()))
    selected, fixed, frugal = (values_AQ[places_Q, everyone] for places_Q in (chosen_Q, fixed_Q, frugal_Q))
    usual = Budget(int(budgets_A[np.bincount(fixed_Q).argmax()]), queries.passage_budget)
    limits = oracle(queries.outcomes, usual, "query")
    gain, headroom = float((selected - fixed).mean()), float((limits.best_Q - fixed).mean())
    carried = None if limits.carried_Q is None else float((limits.carried_Q - fixed).mean())
    counts_A = np.bincount(chosen_Q, minlength=len(budgets_A))
    return AdaptiveRow(
        selector=selector,
        cost=cost,
        fitted_on=fitted_on,
        tested_on=queries.name,
        queries=len(chosen_Q),
        mean=float(selected.mean()),
        mean_budget=mean_budget,
        budgets=dict(zip(budgets_A.tolist(), (counts_A / len(chosen_Q)).tolist(), strict=True)),
        fixed=float(fixed.mean()),
        fixed_budget=float(budgets_A[fixed_Q].mean()),
        gain=gain,
        interval=bootstrap_interval(selected - fixed),
        t_test=t_test_p(selected - fixed),
        randomisation=randomisation_p_each((selected - fixed)[None])[0],
        frugal=float(frugal.mean()),
        frugal_gain=float((selected - frugal).mean()),
        frugal_t_test=t_test_p(selected - frugal),
        headroom=headroom,
        carried=carried,
        recovered=gain / headroom if headroom > 0 else None,
        recovered_carried=gain / carried if carried is not None and carried > 0 else None,
    )


def _best_fixed(queries: QuerySet, source: QuerySet | None, n_allowed: int) -> np.ndarray:
    places_Q = np.empty(len(queries.outcomes.queries), np.int64)
    if source is not None:
        places_Q[:] = source.values_AQ[:n_allowed].mean(axis=1).argmax()
        return places_Q
    for training, test in folds(len(places_Q)):
        places_Q[test] = queries.values_AQ[:n_allowed, training].mean(axis=1).argmax()
    return places_Q


def selector_page(report: FittedSelectorReport, artefact: LearnedSelectorArtefact, fixed: Mapping[int, float]) -> str:
    """Return the whole page; nothing in it depends on when it is made."""
    parts = [
        "# A selector of query budgets",
        _facts(report, artefact),
        _verdict(report.rows),
        "## Against fixed budgets",
        _READING,
        markdown_table([_cells(row) for row in report.rows], [*_COLUMNS, *_SHARES, *_FRUGAL]),
        "## What slots cost",
        "All queries together by cross-validation, with λ taken off each budget's predicted value per slot.",
        "![Measure against mean K_q](curve.png)",
        markdown_table([_cells(row) for row in report.curve], [*_COLUMNS, *_SHARES, *_FRUGAL]),
        "Fixed budgets on the same queries: " + ", ".join(f"K_q = {k} {points(v)}" for k, v in fixed.items()) + ".",
        *command_blocks(report.command),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(report: FittedSelectorReport, artefact: LearnedSelectorArtefact) -> str:
    found = "none: it chooses the best fixed budget" if artefact.penalty is None else f"ridge {artefact.penalty:g}"
    rows: list[list[Cell]] = [
        ["retriever", report.retriever],
        ["encoder fingerprint", report.fingerprint],
        ["fitted on", ", ".join(artefact.collections)],
        ["queries", f"{artefact.queries:,}"],
        ["predicts", f"{report.mode} {report.measure} at K_p = {report.passage_budget}"],
        ["features", ", ".join(feature.name for feature in artefact.features)],
        ["K_q", listed(artefact.budgets)],
        ["λ", f"{artefact.cost:g}"],
        ["signal", found],
    ]
    return markdown_table(rows, ["what", "value"])


def _verdict(rows: Sequence[AdaptiveRow]) -> str:
    learned = [row for row in rows if row.selector.startswith("learned")]
    worse = [row for row in learned if row.gain < 0 and min(row.t_test, row.randomisation) < ALPHA]
    better = [row for row in learned if row.gain > 0 and max(row.t_test, row.randomisation) < ALPHA]
    return (
        f"Of {len(learned)} evaluations of the learned selector, {len(better)} are significantly better than the best "
        f"fixed budget and {len(worse)} significantly worse (p < .05, uncorrected)."
    )


def _cells(row: AdaptiveRow) -> list[Cell]:
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


def draw_curve(report: FittedSelectorReport, fixed: Mapping[int, float], rule: AdaptiveRow | None) -> bytes:
    """Return a PNG of mean measure by mean K_q, all queries together."""
    title = f"What query slots buy, {report.mode} {report.measure}"
    subtitle = (
        f"{report.curve[0].queries:,} queries, $K_p$ = {report.passage_budget}; learned: five-fold cross-validation"
    )
    figure = headed_figure(6.4, HEAD_INCHES + 3.6, title, subtitle)
    panel = figure.subplots()
    quiet(panel, "y")
    panel.plot(list(fixed), list(fixed.values()), color=GREY, marker="s", linewidth=1.4, label="fixed", zorder=2)
    points = sorted({(row.mean_budget, row.mean) for row in report.curve})
    panel.plot(*zip(*points, strict=True), color=BLUE, marker="o", linewidth=1.8, label="learned", zorder=4)
    if rule is not None:
        panel.plot([rule.mean_budget], [rule.mean], color=ORANGE, marker="D", linestyle="none", label="rule", zorder=3)
    for row, offset, side in ((report.curve[0], (0, 9), "center"), (report.curve[-1], (-9, -4), "right")):
        panel.annotate(
            f"λ = {row.cost:g}", (row.mean_budget, row.mean), offset, textcoords="offset points", ha=side,
            fontsize=8.5, color=BLUE, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=3,
        )  # fmt: skip
    label_curve(panel, list(fixed), "mean $K_q$", report.measure)
    return png(figure)
