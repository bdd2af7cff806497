"""How alike slots are for each K, and which passage slot wins for each query slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from diffretriever.analysis.numbers import points
from diffretriever.figures import BLUE, HEAD_INCHES, INK, MUTED, RED, headed_figure, png, quiet
from schemas.analyse import AnalysisReport
from schemas.slots import SlotSimilarity, SlotWins

_COLUMNS = 4
_PANEL_WIDTH, _PANEL_HEIGHT = 3.0, 2.4
_COLOURS = {"query": BLUE, "passage": RED}


def draw_slots(report: AnalysisReport) -> bytes:
    """Return a PNG: cosines by K in the first panel, then the shares of wins of each set."""
    n_panels = 1 + len(report.wins)
    n_columns = min(_COLUMNS, n_panels)
    n_rows = -(-n_panels // n_columns)
    subtitle = f"cosine between a text's slots, bootstrap 95% intervals; shares of MaxSim wins at {report.fixed}"
    height = HEAD_INCHES + 0.15 + n_rows * _PANEL_HEIGHT
    figure = headed_figure(0.4 + n_columns * _PANEL_WIDTH, height, "How different slots are, and which win", subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    _draw_cosines(panels[0], report.similarities)
    highest = max((max(map(max, wins.shares)) for wins in report.wins), default=1.0)
    for panel, wins in zip(panels[1:], report.wins, strict=False):
        _draw_wins(panel, wins, highest)
    for panel in panels[n_panels:]:
        panel.set_visible(False)
    return png(figure)


def _draw_cosines(panel: Axes, found: Sequence[SlotSimilarity]) -> None:
    quiet(panel, "y")
    named: set[str] = set()
    for collection, side in dict.fromkeys((f.collection, f.side) for f in found):
        own = [f for f in found if (f.collection, f.side) == (collection, side)]
        label = None if side in named else f"{side} slots"
        named.add(side)
        panel.plot(
            [f.slots for f in own], [f.cosine for f in own], color=_COLOURS[side], linewidth=1.5, marker="o",
            markersize=4, alpha=0.85, label=label,
        )  # fmt: skip
        for f in own:
            panel.plot([f.slots, f.slots], f.interval, color=_COLOURS[side], linewidth=1.2, alpha=0.7)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(sorted({f.slots for f in found})))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel("K", fontsize=9, color=INK)
    panel.set_title("mean cosine between slots", loc="left", fontsize=10, color=INK)
    panel.set_ylim(min(0.0, *(f.cosine for f in found)) - 0.02, 1.02)
    panel.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="best")


def _draw_wins(panel: Axes, wins: SlotWins, highest: float) -> None:
    shares = np.array(wins.shares)
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=highest, aspect="auto")
    if shares.shape[1] <= 8:
        for (row, column), value in np.ndenumerate(shares):
            colour = "white" if value > 0.6 * highest else MUTED
            panel.text(column, row, points(float(value)), ha="center", va="center", fontsize=7.5, color=colour)
    panel.set_title(wins.collection, loc="left", fontsize=10, color=INK)
    panel.set_xlabel("passage slot", fontsize=9, color=INK)
    panel.set_ylabel("query slot", fontsize=9, color=INK)
    for axis, n in ((panel.xaxis, shares.shape[1]), (panel.yaxis, shares.shape[0])):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True) if n > 8 else FixedLocator(range(n)))
        axis.set_major_formatter(lambda place, _: f"{place + 1:.0f}")
    panel.tick_params(length=0, labelsize=8, labelcolor=INK)
    for spine in panel.spines.values():
        spine.set_visible(False)
