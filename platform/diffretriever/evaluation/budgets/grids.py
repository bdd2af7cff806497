"""The numbers of an analysis: grids, oracles, correlations, tests, scoring variants.

Legend: A query budgets, B passage budgets, Q queries, N pooled queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from diffretriever.evaluation.budgets.data import AVERAGE, SELECTION, AnalysisData, averaged
from diffretriever.evaluation.budgets.sweeps import Outcomes
from diffretriever.evaluation.figures import HEAD_INCHES, INK, MUTED, headed_figure, png
from diffretriever.evaluation.tables import (
    Cell,
    markdown_table,
    points,
    signed,
)
from schemas.analyse import AnalysisReport, GridMeans
from schemas.sweep import SweepMode


def grids(data: AnalysisData) -> Iterator[GridMeans]:
    """Yield the grid of each mode on each set, then its average where there are several sets."""
    if data.selection is not None:
        yield _grid(SELECTION, data.modes[0], data.selection)
    for mode in data.modes:
        for name in data.names:
            yield _grid(name, mode, data.outcomes[name, mode])
        if len(data.names) > 1:
            yield _grid(AVERAGE, mode, averaged(data, mode))


def _grid(name: str, mode: SweepMode, outcomes: Outcomes) -> GridMeans:
    means_AB = outcomes.values_ABQ.mean(axis=2)
    return GridMeans(
        collection=name,
        mode=mode,
        means=tuple(map(tuple, means_AB.tolist())),
        best=outcomes.best(),
        spread=float(np.ptp(means_AB)),
    )


_COLUMNS = 4


_CELL_WIDTH, _CELL_HEIGHT = 0.52, 0.40


_MAP = colormaps["YlGnBu"]


def draw_grids(report: AnalysisReport, grids: Sequence[GridMeans]) -> bytes:
    """Return a PNG with a heat map for each of `grids`, all of one mode.

    Each panel has its own colours, from its lowest to its highest mean; a star marks its best cell, a frame the fixed
    budget.
    """
    n_columns = min(_COLUMNS, len(grids))
    n_rows = -(-len(grids) // n_columns)
    panel_width = 0.75 + _CELL_WIDTH * len(report.query_budgets)
    panel_height = 0.85 + _CELL_HEIGHT * len(report.passage_budgets)
    title = f"{report.measure} of {grids[0].mode} retrieval by budget"
    subtitle = f"★ best cell of the panel · framed: the fixed budget {report.fixed}"
    figure = headed_figure(n_columns * panel_width, HEAD_INCHES + n_rows * panel_height, title, subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    for place, (panel, grid) in enumerate(zip(panels, grids, strict=False)):
        _draw(panel, grid, report)
        if place % n_columns == 0:
            panel.set_ylabel("$K_p$", fontsize=10, color=INK)
        if place + n_columns >= len(grids):
            panel.set_xlabel("$K_q$", fontsize=10, color=INK)
    for panel in panels[len(grids) :]:
        panel.set_visible(False)
    return png(figure)


def _draw(panel: Axes, grid: GridMeans, report: AnalysisReport) -> None:
    means_BA = np.array(grid.means).T
    low, spread = means_BA.min(), max(float(np.ptp(means_BA)), 1e-12)
    # The darkest fifth of the map would swallow the numbers.
    shades_BA = 0.05 + 0.75 * (means_BA - low) / spread
    panel.imshow(shades_BA, cmap=_MAP, vmin=0, vmax=1, aspect="auto", origin="lower")
    for b, a in np.ndindex(*means_BA.shape):
        budget = (report.query_budgets[a], report.passage_budgets[b])
        best = budget == (grid.best.query, grid.best.passage)
        text = f"{points(float(means_BA[b, a]))}{'★' if best else ''}"
        colour = "white" if shades_BA[b, a] > 0.5 else INK
        panel.text(
            a, b, text, ha="center", va="center", fontsize=8, color=colour, fontweight="bold" if best else "normal"
        )
        if budget == (report.fixed.query, report.fixed.passage):
            panel.add_patch(Rectangle((a - 0.47, b - 0.46), 0.94, 0.92, fill=False, edgecolor=INK, linewidth=1.8))
    panel.set_title(f"{grid.collection}", loc="left", fontsize=10, color=INK)
    panel.set_title(f"Δ {points(grid.spread)}", loc="right", fontsize=8.5, color=MUTED)
    panel.set_xticks(range(len(report.query_budgets)), [str(k) for k in report.query_budgets])
    panel.set_yticks(range(len(report.passage_budgets)), [str(k) for k in report.passage_budgets])
    panel.tick_params(axis="both", length=0, labelsize=8.5, labelcolor=MUTED)
    for side in panel.spines.values():
        side.set_visible(False)


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


def _has(report: AnalysisReport, collection: str) -> bool:
    return any(grid.collection == collection for grid in report.grids)
