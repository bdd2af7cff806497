"""The oracle's K_q in bins of query features, with rank correlations inset (paper Fig. 6)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from diffretriever.analysis.data import AnalysisData
from diffretriever.analysis.numbers import signed
from diffretriever.budgets.binning import binned_means
from diffretriever.budgets.features import FEATURES
from diffretriever.budgets.oracles import best_query_budgets
from diffretriever.figures import BLUE, GREEN, HEAD_INCHES, INK, MUTED, ORANGE, headed_figure, png, quiet
from schemas.analyse import AnalysisReport, Coefficient, FeatureCorrelation
from schemas.sweep import SweepMode

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
