"""The means of every budget, K_q across and K_p upwards, as the paper draws them (Fig. 4, Appendix C).

Legend: A query budgets, B passage budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from diffretriever.evaluation.figures import INK, MUTED, panel_figure, png
from diffretriever.evaluation.formats.tables import Cell, markdown_table, points, signed
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis import AVERAGE, SELECTION, AnalysisData, AnalysisFacts, Section
from diffretriever.studies.budgets.sweep_files import Outcomes

_COLUMNS = 4
_CELL_WIDTH, _CELL_HEIGHT = 0.52, 0.40
_MAP = colormaps["YlGnBu"]


class GridMeans(Model):
    """Means of one mode on one set of queries."""

    collection: str
    """As collection/split; `average` is the mean of all, each the same weight; `selection` comes before them."""
    mode: SweepMode
    means: tuple[tuple[float, ...], ...]
    """By K_q, then K_p."""
    best: Budget
    """The cell with the highest mean; of equals the one with fewer slots."""
    spread: float
    """Highest mean less lowest."""


class GridSection(Section):
    """The impact of the number of slots."""

    grids: tuple[GridMeans, ...]
    """By mode: each set, then their average where there are several."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Average the outcomes of every cell."""
        chosen_on = [] if data.selection is None else [_grid(SELECTION, data.modes[0], data.selection)]
        grids = [_grid(label, mode, data.of_group(label, mode)) for mode in data.modes for label, _ in data.groups()]
        return cls(grids=(*chosen_on, *grids))

    def figures(self, data: AnalysisData) -> dict[str, bytes]:
        """Draw a heat map for each grid, a figure for each mode."""
        by_mode = {mode: [grid for grid in self.grids if grid.mode == mode] for mode in data.modes}
        return {f"grid-{mode}.png": draw_grids(data.facts, grids) for mode, grids in by_mode.items()}

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield the figures and a table of the fixed and the best cells."""
        yield "## The impact of the number of slots"
        labels = {grid.collection for grid in self.grids}
        yield (
            f"{facts.measure} of every budget. A star marks the best cell of a panel, a frame the fixed budget "
            f"{facts.fixed}; Δ is the highest mean less the lowest."
            + (f" The panel `{SELECTION}` shows the queries that chose it." if SELECTION in labels else "")
            + (f" `{AVERAGE}` weighs every set alike." if AVERAGE in labels else "")
        )
        for mode in facts.modes:
            yield f"![{mode} {facts.measure} by budget](grid-{mode}.png)"
        rows = [_row(grid, facts) for grid in self.grids]
        yield markdown_table(
            rows, ["mode", "queries", str(facts.fixed), "best cell", "its mean", "fixed less best", "Δ"]
        )


def _grid(label: str, mode: SweepMode, outcomes: Outcomes) -> GridMeans:
    means_AB = outcomes.values_ABQ.mean(axis=2)
    return GridMeans(
        collection=label,
        mode=mode,
        means=tuple(map(tuple, means_AB.tolist())),
        best=outcomes.best(),
        spread=float(np.ptp(means_AB)),
    )


def _row(grid: GridMeans, facts: AnalysisFacts) -> list[Cell]:
    fixed = grid.means[facts.query_budgets.index(facts.fixed.query)][facts.passage_budgets.index(facts.fixed.passage)]
    best = max(map(max, grid.means))
    return [
        grid.mode,
        grid.collection,
        points(fixed),
        str(grid.best),
        points(best),
        signed(fixed - best),
        points(grid.spread),
    ]


def draw_grids(facts: AnalysisFacts, grids: Sequence[GridMeans]) -> bytes:
    """Return a PNG with a heat map for each of `grids`, all of one mode; each panel has its own colour scale."""
    title = f"{facts.measure} of {grids[0].mode} retrieval by budget"
    subtitle = f"★ best cell of the panel · framed: the fixed budget {facts.fixed}"
    n_columns = min(_COLUMNS, len(grids))
    size = 0.75 + _CELL_WIDTH * len(facts.query_budgets), 0.85 + _CELL_HEIGHT * len(facts.passage_budgets)
    figure, panels = panel_figure(len(grids), n_columns, size, title, subtitle)
    for place, (panel, grid) in enumerate(zip(panels, grids, strict=True)):
        draw_grid(panel, grid, facts)
        panel.set_title(f"{grid.collection}", loc="left", fontsize=10, color=INK)
        panel.set_title(f"Δ {points(grid.spread)}", loc="right", fontsize=8.5, color=MUTED)
        if place % n_columns == 0:
            panel.set_ylabel("$K_p$", fontsize=10, color=INK)
        if place + n_columns >= len(grids):
            panel.set_xlabel("$K_q$", fontsize=10, color=INK)
    return png(figure)


def draw_grid(panel: Axes, grid: GridMeans, facts: AnalysisFacts) -> None:
    """Draw one heat map, without a title: means in the cells, a star at the best, a frame around the fixed budget."""
    means_BA = np.array(grid.means).T
    low, spread = means_BA.min(), max(float(np.ptp(means_BA)), 1e-12)
    # The darkest fifth of the map would swallow the numbers.
    shades_BA = 0.05 + 0.75 * (means_BA - low) / spread
    panel.imshow(shades_BA, cmap=_MAP, vmin=0, vmax=1, aspect="auto", origin="lower")
    for b, a in np.ndindex(*means_BA.shape):
        budget = Budget(facts.query_budgets[a], facts.passage_budgets[b])
        is_best = budget == grid.best
        text = f"{points(float(means_BA[b, a]))}{'★' if is_best else ''}"
        colour, weight = "white" if shades_BA[b, a] > 0.5 else INK, "bold" if is_best else "normal"
        panel.text(a, b, text, ha="center", va="center", fontsize=8, color=colour, fontweight=weight)
        if budget == facts.fixed:
            panel.add_patch(Rectangle((a - 0.47, b - 0.46), 0.94, 0.92, fill=False, edgecolor=INK, linewidth=1.8))
    frame_grid(panel, facts.query_budgets, facts.passage_budgets)


def frame_grid(panel: Axes, query_budgets: Sequence[int], passage_budgets: Sequence[int]) -> None:
    """Name the columns and rows of a heat map, and take its frame away."""
    panel.set_xticks(range(len(query_budgets)), [str(k) for k in query_budgets])
    panel.set_yticks(range(len(passage_budgets)), [str(k) for k in passage_budgets])
    panel.tick_params(axis="both", length=0, labelsize=8.5, labelcolor=MUTED)
    for side in panel.spines.values():
        side.set_visible(False)
