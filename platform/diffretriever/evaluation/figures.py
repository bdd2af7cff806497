"""Common layout of figures: size, title and colours, and PNGs that are reproducible to the byte."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

INK, MUTED, GRID, BASE = "#22272e", "#6b7785", "#e3e6ea", "#b9c0c8"
BLUE, RED, GREEN, ORANGE, GREY = "#3b6ea5", "#c25b56", "#4f9d69", "#e08e45", "#9aa4af"

HEAD_INCHES = 0.72
"""Height of a figure's two lines of text."""


def headed_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """Return an empty figure with two title lines; sizes in inches, wider if the lines need it."""
    width = max(width, 0.3 + 0.112 * len(title), 0.3 + 0.075 * len(subtitle))
    below = (0.01, 0.01, 0.98, 0.99 - HEAD_INCHES / height)
    figure = Figure(
        figsize=(width, height), dpi=150, layout=ConstrainedLayoutEngine(rect=below, wspace=0.05, hspace=0.06)
    )
    FigureCanvasAgg(figure)
    figure.text(0.12 / width, 1 - 0.12 / height, title, va="top", fontsize=12, fontweight="bold", color=INK)
    figure.text(0.12 / width, 1 - 0.40 / height, subtitle, va="top", fontsize=9, color=MUTED)
    return figure


def panel_figure(
    n_panels: int,
    n_columns: int,
    panel_inches: tuple[float, float],
    title: str,
    subtitle: str,
    *,
    margin_inches: tuple[float, float] = (0.0, 0.0),
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a titled figure with a grid of `n_panels` equal panels, filled row by row.

    Sizes are (width, height) in inches; `margin_inches` is for labels and legends.
    """
    n_columns = min(n_columns, n_panels)
    n_rows = -(-n_panels // n_columns)
    width = margin_inches[0] + n_columns * panel_inches[0]
    height = HEAD_INCHES + margin_inches[1] + n_rows * panel_inches[1]
    figure = headed_figure(width, height, title, subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False, sharey=share_y).flatten().tolist()
    for panel in panels[n_panels:]:
        panel.set_visible(False)
    return figure, panels[:n_panels]


def quiet(panel: Axes, grid_axis: Literal["x", "y"]) -> None:
    """Draw thin grid lines along one axis, and no frame except the base."""
    panel.grid(axis=grid_axis, color=GRID, linewidth=0.8, zorder=0)
    panel.set_axisbelow(True)
    panel.tick_params(axis="both", length=0, labelsize=8.5, labelcolor=INK)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(BASE)


def label_curve(panel: Axes, ticks: Sequence[int], x_label: str, y_label: str) -> None:
    """Set a log2 x axis with these ticks, labels and a legend."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(x_label, fontsize=9.5, color=INK)
    panel.set_ylabel(y_label, fontsize=9.5, color=INK)
    panel.margins(x=0.06, y=0.14)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    panel.tick_params(labelcolor=MUTED)


def in_the_foot(panel: Axes, text: str, x: float) -> None:
    """Write a number into the base of a bar."""
    panel.annotate(
        text, (x, 0), (0, 4), textcoords="offset points", ha="center", fontsize=7.5, color=INK, zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
    )  # fmt: skip


def draw_diamond(panel: Axes, x: float, value: float) -> None:
    """Draw a measured value over a bar."""
    panel.plot(x, value, "D", color=INK, markerfacecolor="white", markersize=5, zorder=4)


def diamond_key() -> Artist:
    """Return the legend's entry for `draw_diamond`."""
    return Line2D([], [], marker="D", linestyle="", markersize=5, color=INK, markerfacecolor="white", label="ours")


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG."""
    buffer = io.BytesIO()
    # The version of matplotlib in the file would make equal figures differ.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
