"""Which queries want more slots: the oracle's K_q against query features (paper §6.3, Fig. 6).

Legend: N queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from matplotlib.axes import Axes

from diffretriever.budgets.features import FEATURES
from diffretriever.evaluation.figures import BLUE, GREEN, HEAD_INCHES, INK, MUTED, ORANGE, headed_figure, png, quiet
from diffretriever.evaluation.formats.tables import Cell, Interval, between, markdown_table, signed
from diffretriever.evaluation.statistics import Correlation, bootstrap_interval, kendall, spearman
from diffretriever.schemas.base import Model
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis import POOLED, AnalysisData, AnalysisFacts, Section
from diffretriever.studies.budgets.oracles import best_query_budgets, decided

_COLOURS: dict[SweepMode, str] = {"dense": BLUE, "sparse": ORANGE, "hybrid": GREEN}
_PANEL_WIDTH, _PANEL_HEIGHT = 3.3, 2.35


class Coefficient(Model):
    """A rank correlation with its bootstrap 95% interval; None where a side is constant."""

    value: float | None
    low: float | None
    high: float | None


class FeatureCorrelation(Model):
    """How a query feature goes with the oracle's K_q."""

    collection: str
    """As collection/split, or `pooled`."""
    mode: SweepMode
    feature: str
    queries: Literal["all", "decided"]
    """`decided`: only those for which K_q makes a difference."""
    n: int
    spearman: Coefficient
    kendall: Coefficient


class FeatureSection(Section):
    """Which queries want more slots, over all queries (as in the paper) and over those whose K_q makes a difference."""

    correlations: tuple[FeatureCorrelation, ...]
    """By mode: all queries pooled, then each set where there are several."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Correlate each feature with the oracle's K_q."""
        alone = [(name, [name]) for name in data.names] if len(data.names) > 1 else []
        groups = [(POOLED, data.names), *alone]
        found = (c for mode in data.modes for label, names in groups for c in _correlations(data, mode, label, names))
        return cls(correlations=tuple(found))

    def figures(self, data: AnalysisData) -> dict[str, bytes]:
        """Draw the oracle's K_q by bins of each feature."""
        return {"features.png": self._drawn(data)}

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield the figure and the correlations over all queries pooled."""
        yield "## Which queries want more slots"
        yield (
            f"The K_q that is best for a query at K_p = {facts.fixed.passage}, of equal ones the smallest, against "
            "what is known of the query for little. Rank correlations over all queries pooled, with bootstrap 95% "
            "intervals. A selector may look at all but those of slots, which take a pass of the encoder."
        )
        yield "![Best query budget by feature](features.png)"
        yield (
            "`decided` leaves out the queries for which K_q makes no difference: they count as wanting the fewest "
            "slots, which alone makes a correlation where easy or hopeless queries are short or long. Pooled figures "
            "also mix differences between sets with those between their queries; report.json has each set by itself."
        )
        rows = [_row(c) for c in self.correlations if c.collection == POOLED]
        yield markdown_table(rows, ["mode", "feature", "queries", "n", "Spearman ρ", "Kendall τ"])  # noqa: RUF001

    def _drawn(self, data: AnalysisData) -> bytes:
        n_rows, n_columns = len(data.modes), len(data.feature_names)
        title = f"The query budget that is best for a query, {data.measure} at $K_p$ = {data.fixed.passage}"
        subtitle = (
            "means of all queries, of equal budgets the smallest, in bins of about equal size; bootstrap 95% intervals"
        )
        height = HEAD_INCHES + 0.25 + n_rows * _PANEL_HEIGHT
        figure = headed_figure(0.5 + n_columns * _PANEL_WIDTH, height, title, subtitle)
        panels = figure.subplots(n_rows, n_columns, squeeze=False, sharex="col", sharey=True)
        found = {(c.mode, c.feature): c for c in self.correlations if (c.collection, c.queries) == (POOLED, "all")}
        for row, mode in enumerate(data.modes):
            best_N = _best(data, mode, data.names).astype(np.float64)
            for column, feature in enumerate(data.feature_names):
                panel = panels[row, column]
                _draw(panel, _feature(data, column, data.names), best_N, _COLOURS.get(mode, MUTED))
                _inset(panel, found[mode, feature])
                if row == n_rows - 1:
                    panel.set_xlabel(FEATURES[feature].title, fontsize=9.5, color=INK)
            panels[row, 0].set_ylabel(f"{mode}: best $K_q$", fontsize=9.5, color=INK)
        budgets = data.facts.query_budgets
        for panel in panels.flatten():
            panel.set_yscale("log", base=2)
            panel.set_yticks(budgets, [str(budget) for budget in budgets])
            panel.minorticks_off()
            panel.set_ylim(budgets[0] * 0.85, budgets[-1] * 1.15)
        return png(figure)


def _correlations(
    data: AnalysisData, mode: SweepMode, label: str, names: Sequence[str]
) -> Iterator[FeatureCorrelation]:
    k_p = data.fixed.passage
    best_N = _best(data, mode, names)
    decided_N = np.concatenate([decided(data.outcomes[name, mode], k_p) for name in names])
    chosen: dict[Literal["all", "decided"], np.ndarray] = {"all": np.ones_like(decided_N), "decided": decided_N}
    for column, feature in enumerate(data.feature_names):
        values_N = _feature(data, column, names)
        for queries, chosen_N in chosen.items():
            if not chosen_N.any():
                continue
            sides = values_N[chosen_N], best_N[chosen_N]
            yield FeatureCorrelation(
                collection=label,
                mode=mode,
                feature=feature,
                queries=queries,
                n=int(chosen_N.sum()),
                spearman=_coefficient(spearman(*sides)),
                kendall=_coefficient(kendall(*sides)),
            )


def _best(data: AnalysisData, mode: SweepMode, names: Sequence[str]) -> np.ndarray:
    return np.concatenate([best_query_budgets(data.outcomes[name, mode], data.fixed.passage) for name in names])


def _feature(data: AnalysisData, column: int, names: Sequence[str]) -> np.ndarray:
    return np.concatenate([data.features[name][:, column] for name in names])


def _coefficient(found: Correlation) -> Coefficient:
    value, low, high = (None if math.isnan(x) else x for x in (found.value, found.low, found.high))
    return Coefficient(value=value, low=low, high=high)


def _row(found: FeatureCorrelation) -> list[Cell]:
    return [
        found.mode,
        FEATURES[found.feature].title,
        found.queries,
        found.n,
        _shown(found.spearman),
        _shown(found.kendall),
    ]


def _shown(coefficient: Coefficient) -> str:
    if coefficient.value is None or coefficient.low is None or coefficient.high is None:
        return "undefined"
    return f"{signed(coefficient.value)} {between((coefficient.low, coefficient.high))}"


def _draw(panel: Axes, features_N: np.ndarray, best_N: np.ndarray, colour: str) -> None:
    quiet(panel, "y")
    bins = binned_means(features_N, best_N)
    x = [b.feature for b in bins]
    panel.plot(x, [b.mean for b in bins], color=colour, linewidth=1.6, marker="o", markersize=5, zorder=3)
    for b in bins:
        panel.plot([b.feature, b.feature], b.interval, color=colour, linewidth=1.4, alpha=0.75, zorder=2)


def _inset(panel: Axes, found: FeatureCorrelation) -> None:
    lines = [f"$\\rho$ {_shown(found.spearman)}", f"$\\tau$ {_shown(found.kendall)}"]
    panel.text(
        0.04, 0.95, "\n".join(lines), transform=panel.transAxes, va="top", fontsize=8.5, color=INK, linespacing=1.4,
        bbox={"facecolor": "white", "edgecolor": "#d5dae0", "boxstyle": "round,pad=0.35", "alpha": 0.92}, zorder=6,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bin:
    """The mean feature and mean value of `n` queries whose feature lies in one range."""

    n: int
    feature: float
    mean: float
    interval: Interval


def binned_means(features_N: np.ndarray, values_N: np.ndarray, most: int = 8) -> list[Bin]:
    """Return means in at most `most` bins of about equal size, by rising feature; equal features share a bin."""
    edges = np.unique(np.quantile(features_N, np.arange(1, most) / most))
    places_N = np.searchsorted(edges, features_N, side="left")
    members = [np.flatnonzero(places_N == place) for place in np.unique(places_N)]
    return [
        Bin(len(m), float(features_N[m].mean()), float(values_N[m].mean()), bootstrap_interval(values_N[m]))
        for m in members
    ]
