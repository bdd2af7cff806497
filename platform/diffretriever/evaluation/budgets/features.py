"""Means of one number in bins of another, for plots.

Legend: N queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from diffretriever.budgets.features import FEATURES
from diffretriever.evaluation.budgets.data import POOLED, AnalysisData
from diffretriever.evaluation.budgets.oracles import best_query_budgets, decided
from diffretriever.evaluation.figures import BLUE, GREEN, HEAD_INCHES, INK, MUTED, ORANGE, headed_figure, png, quiet
from diffretriever.evaluation.statistics import Correlation, bootstrap_interval, kendall, spearman
from diffretriever.evaluation.tables import (
    Cell,
    between,
    markdown_table,
    signed,
)
from schemas.analyse import AnalysisReport, Coefficient, FeatureCorrelation
from schemas.sweep import SweepMode


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries whose feature lies in one range.

    Attributes:
        n: how many.
        feature: their mean feature.
        mean: their mean value.
        interval: bootstrap 95% interval of that mean.
    """

    n: int
    feature: float
    mean: float
    interval: tuple[float, float]


def binned_means(features_N: np.ndarray, values_N: np.ndarray, most: int = 8) -> list[Bin]:
    """Return means of the values in at most `most` bins of about as many queries each, by rising feature.

    Equal features fall into one bin, so that there are fewer bins where a feature takes few values.

    Args:
        features_N: float64 [N], N at least 1.
        values_N: float64 [N].
        most: at least 1.
    """
    edges = np.unique(np.quantile(features_N, np.arange(1, most) / most))
    places_N = np.searchsorted(edges, features_N, side="left")
    members = [np.flatnonzero(places_N == place) for place in np.unique(places_N)]
    return [
        Bin(len(m), float(features_N[m].mean()), float(values_N[m].mean()), bootstrap_interval(values_N[m]))
        for m in members
    ]


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


_COLOURS: dict[SweepMode, str] = {"dense": BLUE, "sparse": ORANGE, "hybrid": GREEN}


_PANEL_WIDTH, _PANEL_HEIGHT = 3.3, 2.35


def draw_features(report: AnalysisReport, data: AnalysisData) -> bytes:
    """Return a PNG with a row for each mode and a column for each feature, all queries pooled."""
    n_rows, n_columns = len(data.modes), len(data.feature_names)
    title = f"The query budget that is best for a query, {report.measure} at $K_p$ = {report.fixed.passage}"
    subtitle = (
        "means of all queries, of equal budgets the smallest, in bins of about equal size; bootstrap 95% intervals"
    )
    height = HEAD_INCHES + 0.25 + n_rows * _PANEL_HEIGHT
    figure = headed_figure(0.5 + n_columns * _PANEL_WIDTH, height, title, subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False, sharex="col", sharey=True)
    for row, mode in enumerate(data.modes):
        best_N = pooled_best(data, mode).astype(np.float64)
        for column, feature in enumerate(data.feature_names):
            features_N = np.concatenate([data.features[name][:, column] for name in data.names])
            _draw(panels[row, column], features_N, best_N, _COLOURS.get(mode, MUTED))
            _inset(panels[row, column], _pooled(report, mode, feature))
            if row == n_rows - 1:
                panels[row, column].set_xlabel(FEATURES[feature].title, fontsize=9.5, color=INK)
        panels[row, 0].set_ylabel(f"{mode}: best $K_q$", fontsize=9.5, color=INK)
    for panel in panels.flatten():
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_locator(FixedLocator(report.query_budgets))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:.0f}")
        panel.set_ylim(report.query_budgets[0] * 0.85, report.query_budgets[-1] * 1.15)
    return png(figure)


def pooled_best(data: AnalysisData, mode: SweepMode) -> np.ndarray:
    """Return the best K_q of every query of every set, int64."""
    return np.concatenate([best_query_budgets(data.outcomes[name, mode], data.fixed.passage) for name in data.names])


def _draw(panel: Axes, features_N: np.ndarray, best_N: np.ndarray, colour: str) -> None:
    quiet(panel, "y")
    bins = binned_means(features_N, best_N)
    x = [b.feature for b in bins]
    panel.plot(x, [b.mean for b in bins], color=colour, linewidth=1.6, marker="o", markersize=5, zorder=3)
    for b in bins:
        panel.plot([b.feature, b.feature], b.interval, color=colour, linewidth=1.4, alpha=0.75, zorder=2)


def _pooled(report: AnalysisReport, mode: SweepMode, feature: str) -> FeatureCorrelation:
    return next(
        c
        for c in report.correlations
        if (c.collection, c.mode, c.feature, c.queries) == ("pooled", mode, feature, "all")
    )


def _inset(panel: Axes, found: FeatureCorrelation) -> None:
    lines = [f"$\\rho$ {_written(found.spearman)}", f"$\\tau$ {_written(found.kendall)}"]
    panel.text(
        0.04, 0.95, "\n".join(lines), transform=panel.transAxes, va="top", fontsize=8.5, color=INK, linespacing=1.4,
        bbox={"facecolor": "white", "edgecolor": "#d5dae0", "boxstyle": "round,pad=0.35", "alpha": 0.92}, zorder=6,
    )  # fmt: skip


def _written(coefficient: Coefficient) -> str:
    if coefficient.value is None or coefficient.low is None or coefficient.high is None:
        return "undefined"
    return f"{signed(coefficient.value)} [{signed(coefficient.low)}, {signed(coefficient.high)}]"


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
            _page_coefficient(c.spearman),
            _page_coefficient(c.kendall),
        ]
        for c in report.correlations
        if c.collection == POOLED
    ]
    yield markdown_table(rows, ["mode", "feature", "queries", "n", "Spearman ρ", "Kendall τ"])  # noqa: RUF001


def _page_coefficient(found: Coefficient) -> str:
    if found.value is None or found.low is None or found.high is None:
        return "undefined"
    return f"{signed(found.value)} {between((found.low, found.high))}"
